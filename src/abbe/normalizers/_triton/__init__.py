"""Triton kernels of sparsemax and alpha-entmax, for tensors on a GPU (CUDA and ROCm).

`choice` decides, without triton, which rows they take; `run` launches them; `tiles`, `forward` and `backward` are the
kernels and import triton, so they are imported only when such rows arrive.
"""
