"""Regularised argmax: the p that maximises <l, p> - Omega(p), where one number per row must be found first.

`root` finds it, `any_alpha` is entmax beyond [1, 2], `normmax` has a norm as Omega, `budget` keeps weights below 1.
"""
