"""Capacity N*: the smallest N such that the top N weights of every row keep the loss. One algorithm for all studies."""
