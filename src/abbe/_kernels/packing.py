"""Vectors packed for the matrix products of kernels (`products`); numba is loaded only when the first are packed."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from .switch import load
from .threads import over_rows

_PACKED_BY = 48  # vectors: as in `products`


def pack(vectors: Tensor) -> Tensor:
    """(heads, whole panels of vectors times depth), from contiguous (heads, vectors, depth) in float32."""
    heads, count, depth = vectors.shape
    parts = -(-count // _PACKED_BY)
    packed = torch.empty(heads, parts * _PACKED_BY * depth, dtype=torch.float32)
    over_rows(load("abbe._kernels.products", "pack_keys"), heads * parts, vectors, packed)
    return packed


@cache
def products_pay() -> bool:
    """Whether products inside a kernel keep up with torch's: they need vectors of 256 bits with fused multiply-add."""
    pay: bool = load("abbe._kernels.products", "PAY")
    return pay
