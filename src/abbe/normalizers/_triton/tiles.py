"""Shared by both kernels: tiles of several short rows or a part of a long one, and logarithms near 1.

In a tile, one number per row has the shape (ROWS, 1). Sums run lane by lane over the blocks of a long row, then as a
tree, so that float32 loses only a few eps at any length.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4e38)  # in place of -inf, the gap of two logits whose difference overflows


@triton.jit
def program_rows(rows, keys, ROWS: tl.constexpr):
    """The rows of this program: their numbers, where each begins, and which exist."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # rows x keys may exceed 2^31
    return row, row * keys, row < rows


@triton.jit
def row_params(params, row, real, params_step, MAP: tl.constexpr):
    """Scale and beta = alpha - 1 per row; a step of 0 shares one row of parameters among all."""
    at = params + row * params_step
    scale = tl.load(at, mask=real, other=1.0)
    if MAP == "entmax":
        return scale, tl.load(at + 1, mask=real, other=1.0)
    return scale, tl.full(scale.shape, 0.5 if MAP == "entmax15" else 1.0, tl.float32)


@triton.jit
def load_tile(source, first, real, start, keys, absent: tl.constexpr, BLOCK: tl.constexpr):
    """Keys start ... start + BLOCK of the rows that begin at `first`, converted to float32."""
    key = start + tl.arange(0, BLOCK)[None, :]
    return tl.load(source + first + key, mask=real & (key < keys), other=absent).to(tl.float32)


@triton.jit
def store_tile(target, first, real, start, keys, values, BLOCK: tl.constexpr):
    key = start + tl.arange(0, BLOCK)[None, :]
    tl.store(target + first + key, values.to(target.dtype.element_ty), mask=real & (key < keys))


@triton.jit
def row_sum(tile):
    return tl.sum(tile, 1, keep_dims=True)


@triton.jit
def row_max(tile):
    return tl.max(tile, 1, keep_dims=True)


@triton.jit
def log1p(t):
    """ln(1 + t) for -1 < t <= 0, with a relative error of a few eps: it is divided by a small beta."""
    near = t > -0.25
    # atanh series in v = t/(2 + t), |v| <= 1/7: the first omitted term is 2e-8 of the sum. A hardware logarithm
    # of 1 + t has an absolute error there.
    y = tl.where(near, t, 0.0)
    v = y / (2.0 + y)
    q = v * v
    series = 2.0 * v * (1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9)))))
    return tl.where(near, series, tl.log(tl.where(near, 1.0, 1.0 + t)))
