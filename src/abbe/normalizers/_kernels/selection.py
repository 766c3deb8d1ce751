"""Softmax over selected keys: top-k, top-p and relative threshold. Params (scale, k), (scale, p), (scale, rel).

The cut is found by bisection on the logit, each step one vector pass that counts the keys (or their mass)
above it, until the keys left in doubt are few enough to be sorted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int32, int64

from ..._kernels.compiled import inlined, kernel
from ..._kernels.sums import LONG_BLOCK, Row, row_sum, sum_over_keys
from ..._kernels.vector import NEG_INF, ONE, ZERO, bits, copy_row, f32, from_bits, minimum
from .rows import forward_rows
from .shaped import visible_count
from .softmax import exponentials, multiply

_FEW = 24  # keys in doubt that are sorted by insertion
_BY_VALUE = 14  # steps by value come first; steps by bit pattern then end within 32


@sum_over_keys(LONG_BLOCK, sums=2, rounded=False)
def above(j: int, row: Row, mass: Row, cut: Any) -> Any:
    """Mass and number of the keys above the cut."""
    kept, m = row[j] > cut, mass[j]
    return m if kept else ZERO, ONE if kept else ZERO


@kernel
def ordered(x: Any) -> Any:
    """Integers in the order of the floats."""
    b = bits(x)
    return int64(b ^ ((b >> int32(31)) & int32(0x7FFFFFFF)))


@kernel
def unordered(i: Any) -> Any:
    """The inverse of `ordered`."""
    b = int32(i)
    return from_bits(b ^ ((b >> int32(31)) & int32(0x7FFFFFFF)))


@kernel
def lowest(row: Any) -> Any:
    low = f32(np.inf)
    for j in range(row.shape[0]):
        low = minimum(low, row[j] if row[j] > NEG_INF else f32(np.inf))
    return low


@kernel
def narrow(row: Any, mass: Any, target: Any, top: Any) -> Any:
    """(low, high]: the mass above low reaches the target, the mass above high (returned) does not, few lie between."""
    # 2 steps down, as 0 and -0 are equal; below -inf the integers would be those of NaN
    low, high = unordered(max(ordered(lowest(row)) - 2, ordered(NEG_INF))), top
    _, count_low = above(row, mass, low)
    have, count_high = 0.0, 0.0
    for step in range(_BY_VALUE + 33):
        if count_low - count_high <= _FEW:
            break
        middle = f32(0.5) * low + f32(0.5) * high  # low + high could overflow
        if step >= _BY_VALUE or not low < middle < high:
            middle = unordered((ordered(low) + ordered(high)) // 2)
            if middle in (low, high):
                break
        amount, count = above(row, mass, middle)
        if amount >= target:
            low, count_low = middle, count
        else:
            high, count_high, have = middle, count, amount
    return low, high, have, int64(count_low - count_high)


@kernel
def in_doubt(row: Any, low: Any, high: Any, index: Any) -> int:
    """Places of the keys in (low, high], largest first and earlier first among equals; returns their number."""
    count = 0
    for j in range(row.shape[0]):  # no branches: they would be mispredicted
        index[count] = j
        count += 1 if low < row[j] <= high else 0
    for c in range(1, count):
        j = index[c]
        at = c
        while at > 0 and row[index[at - 1]] < row[j]:
            index[at] = index[at - 1]
            at -= 1
        index[at] = j
    return count


@kernel
def keep_largest(row: Any, mass: Any, target: Any, top: Any, out: Any) -> None:
    """Zero out all but the fewest largest keys whose masses reach the target; earlier keys win ties."""
    low, high, have, doubt = narrow(row, mass, target, top)
    # One more: a place is written before its key is tested.
    index, kept_out = np.empty(_FEW + 1, np.int64), np.empty(_FEW + 1, np.float32)
    if doubt > _FEW:  # more equal keys than fit: they are taken in order of place
        for j in range(row.shape[0]):
            keep = row[j] > high or (row[j] == high and have < target)
            have += mass[j] if row[j] == high and have < target else ZERO
            out[j] = out[j] if keep else ZERO
        return
    doubtful = in_doubt(row, low, high, index)
    kept = 0
    while kept < doubtful and have < target:
        have += mass[index[kept]]
        kept += 1
    for c in range(kept):
        kept_out[c] = out[index[c]]
    for j in range(row.shape[0]):
        out[j] = out[j] if row[j] > high else ZERO
    for c in range(kept):
        out[index[c]] = kept_out[c]


@kernel
def renormalize(out: Any) -> None:
    multiply(out, f32(1.0 / row_sum(out)))


@kernel
def ones_scratch(keys: int) -> Any:
    return np.ones(keys, np.float32)


@inlined
def keep_k(row: Any, top: Any, k: Any, out: Any, ones: Any) -> Any:
    """out = exponentials of the k largest keys, 0 elsewhere; returns the sum over all keys."""
    total = exponentials(row, top, ONE, ZERO, out)
    # With at most k keys none is cut, and the search could not reach its target.
    if visible_count(row) > k:
        keep_largest(row, ones, k, top, out)
    return total


@forward_rows(scratch=ones_scratch)
def topk_forward(row: Any, top: Any, params: Any, out: Any, ones: Any) -> None:
    keep_k(row, top, params[1], out, ones)
    renormalize(out)


@forward_rows(scratch=ones_scratch)
def topk_kept_forward(row: Any, top: Any, params: Any, out: Any, ones: Any) -> None:
    """Top-k that keeps the full softmax weights."""
    multiply(out, ONE / keep_k(row, top, params[1], out, ones))


@forward_rows(scratch=ones_scratch)
def topp_forward(row: Any, top: Any, params: Any, out: Any, mass: Any) -> None:
    total = exponentials(row, top, ONE, ZERO, mass)
    copy_row(mass, out)
    # With p = 1 all are kept: the rounded mass of some may already equal the total.
    if params[1] < ONE:
        keep_largest(row, mass, params[1] * total, top, out)
    renormalize(out)


@forward_rows()
def threshold_forward(row: Any, top: Any, params: Any, out: Any) -> None:
    exponentials(row, top, ONE, ZERO, out)
    for j in range(row.shape[0]):
        out[j] = out[j] if out[j] >= params[1] else ZERO
    renormalize(out)
