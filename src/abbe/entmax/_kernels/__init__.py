"""Fused kernels of the losses for float32 rows on a CPU, compiled by numba on first use and cached on disk."""
