"""Softmax over selected keys: top-k, top-p and relative threshold. Params (scale, k), (scale, p), (scale, rel).

The cut is found by bisection on the logit, each step one vector pass that counts the keys (or their mass)
above it, until so few keys are left in doubt that they can be put in order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import int32, int64

from ._vector import NEG_INF, ONE, ZERO, below, bits, f32, from_bits, kernel, minimum, row_max, usable
from .shaped import kept_backward  # noqa: F401  (gradient of the kept full weights)
from .softmax import backward as selected_backward  # noqa: F401  (softmax of the selected keys)
from .softmax import exponentials, multiply

_FEW = 48
_BY_VALUE = 14  # steps by value come first; steps by bit pattern then end within 32


@kernel
def amount_above(row: Any, mass: Any, cut: Any) -> Any:
    total = ZERO
    for j in range(row.shape[0]):
        total += mass[j] if row[j] > cut else ZERO
    return total


@kernel
def count_between(row: Any, low: Any, high: Any) -> Any:
    count = ZERO
    for j in range(row.shape[0]):
        count += ONE if row[j] > low and row[j] <= high else ZERO
    return count


@kernel
def ordered(x: Any) -> Any:
    """Integers in the order of the floats."""
    b = bits(x)
    return int64(b ^ ((b >> int32(31)) & int32(0x7FFFFFFF)))


@kernel
def unordered(i: Any) -> Any:
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
    """(low, high]: the amount above low reaches the target, that above high does not, and few lie between."""
    low, high = unordered(ordered(lowest(row)) - 1), top
    for step in range(_BY_VALUE + 33):
        if count_between(row, low, high) <= _FEW:
            break
        middle = f32(0.5) * low + f32(0.5) * high
        if step >= _BY_VALUE or not low < middle < high:
            middle = unordered((ordered(low) + ordered(high)) // 2)
            if middle == low or middle == high:
                break
        if amount_above(row, mass, middle) >= target:
            low = middle
        else:
            high = middle
    return low, high


@kernel
def keep_largest(row: Any, mass: Any, target: Any, top: Any, out: Any) -> None:
    """Zero out of all keys but the least number of largest ones whose masses reach the target; earlier keys
    win ties."""
    low, high = narrow(row, mass, target, top)
    have = amount_above(row, mass, high)
    value, index = np.empty(_FEW + 1, np.float32), np.empty(_FEW + 1, np.int64)
    doubt = 0
    for j in range(row.shape[0]):
        if row[j] > low and row[j] <= high:
            if doubt <= _FEW:
                at = doubt
                while at > 0 and value[at - 1] < row[j]:
                    value[at], index[at] = value[at - 1], index[at - 1]
                    at -= 1
                value[at], index[at] = row[j], j
            doubt += 1
    for j in range(row.shape[0]):
        out[j] = out[j] if row[j] > high else ZERO
    if doubt > _FEW:  # more equal keys than fit: they come in the order of their places
        for j in range(row.shape[0]):
            if have < target and row[j] == high:
                out[j] = exp_of(row[j], top)
                have += mass[j]
        return
    for c in range(doubt):
        if not have < target:
            break
        out[index[c]] = exp_of(value[c], top)
        have += mass[index[c]]


@kernel
def exp_of(x: Any, top: Any) -> Any:
    return f32(math.exp(x - top))


@kernel
def renormalize(out: Any) -> None:
    total = ZERO
    for j in range(out.shape[0]):
        total += out[j]
    multiply(out, ONE / total)


@kernel
def topk_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    ones = np.ones(logits.shape[1], np.float32)
    for r in range(start, stop):
        row, out, k = logits[r], weights[r], params[r if params.shape[0] > 1 else 0, 1]
        top = row_max(row)
        if usable(top, out):
            exponentials(row, top, ONE, ZERO, out)
            if amount_above(row, ones, NEG_INF) > k:
                keep_largest(row, ones, k, top, out)
            renormalize(out)


@kernel
def topk_kept_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    """Top-k that keeps the full softmax weights."""
    ones = np.ones(logits.shape[1], np.float32)
    for r in range(start, stop):
        row, out, k = logits[r], weights[r], params[r if params.shape[0] > 1 else 0, 1]
        top = row_max(row)
        if usable(top, out):
            total = exponentials(row, top, ONE, ZERO, out)
            if amount_above(row, ones, NEG_INF) > k:
                keep_largest(row, ones, k, top, out)
            multiply(out, ONE / total)


@kernel
def topp_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    mass = np.empty(logits.shape[1], np.float32)
    for r in range(start, stop):
        row, out, p = logits[r], weights[r], params[r if params.shape[0] > 1 else 0, 1]
        top = row_max(row)
        if usable(top, out):
            total = exponentials(row, top, ONE, ZERO, mass)
            out[:] = mass
            if p < ONE:
                keep_largest(row, mass, p * total, top, out)
            renormalize(out)


@kernel
def threshold_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    for r in range(start, stop):
        row, out, rel = logits[r], weights[r], params[r if params.shape[0] > 1 else 0, 1]
        top = row_max(row)
        if usable(top, out):
            exponentials(row, top, ONE, ZERO, out)
            for j in range(row.shape[0]):
                out[j] = out[j] if out[j] >= rel else ZERO
            renormalize(out)
