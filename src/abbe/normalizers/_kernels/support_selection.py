"""The support of top-k, top-p and relative threshold: softmax over selected keys, which are found among a few.

The k-th largest lane maximum is never above the k-th largest key, and a set of lane maxima with enough mass bounds the
set of keys that is needed. So one pass over the row leaves few keys to choose from.
"""

from __future__ import annotations

import math
from typing import Any

from ..._kernels.compiled import inlined, kernel
from ..._kernels.sums import row_sum
from ..._kernels.vector import NEG_INF, ONE, ZERO, f32
from .entmax import _SEGMENT
from .selection import keep_largest, narrow
from .shaped import visible_count
from .softmax import exponentials
from .support import gather_above, support_rows
from .thresholds import LANES

_MARGIN = 1e-3  # in logits, more than the error of an exponential
_FARTHEST = 80.0  # below the top: e^-87 is 0


@kernel
def lanes_of(row: Any, lanes: Any) -> Any:
    """The maxima of the lanes that this row fills."""
    return lanes[: (row.shape[0] + _SEGMENT - 1) // _SEGMENT * LANES]


@kernel
def in_order(row: Any, cut: Any, near: Any, index: Any) -> Any:
    """The keys above a cut in order of place, which decides ties; returns their number."""
    count = 0
    for j in range(row.shape[0]):  # no branches: they would be mispredicted
        near[count] = row[j]
        index[count] = j
        count += 1 if row[j] > cut else 0
    return count


@inlined
def put_down(packed: Any, index: Any, count: int, weights: Any, places: Any) -> Any:
    """Write the selected keys, renormalised; returns their number."""
    factor = f32(1.0 / row_sum(packed[:count]))
    kept = 0
    for c in range(count):
        weights[kept] = packed[c] * factor
        places[kept] = index[c]
        kept += 1 if packed[c] > ZERO else 0
    return kept


@support_rows
def topk_support(row: Any, top: Any, params: Any, scratch: Any, weights: Any, places: Any) -> Any:
    lanes, near, packed, index, ones = scratch
    k, of_row, cut = params[1], lanes_of(row, lanes), NEG_INF
    if visible_count(of_row) > k:
        cut, _, _, _ = narrow(of_row, ones[: of_row.shape[0]], k, top)
    count = in_order(row, cut, near, index)
    exponentials(near[:count], top, ONE, ZERO, packed[:count])
    if count > k:
        keep_largest(near[:count], ones[:count], k, top, packed[:count])
    return put_down(packed, index, count, weights, places)


@support_rows
def topp_support(row: Any, top: Any, params: Any, scratch: Any, weights: Any, places: Any) -> Any:
    lanes, near, packed, index, _ = scratch
    p, of_row, cut = params[1], lanes_of(row, lanes), NEG_INF
    target = p * exponentials(row, top, ONE, ZERO, near[: row.shape[0]])
    if p < ONE:
        mass = near[: of_row.shape[0]]
        if exponentials(of_row, top, ONE, ZERO, mass) > target * f32(1.0 + _MARGIN):
            cut, _, _, _ = narrow(of_row, mass, target * f32(1.0 + _MARGIN), top)
    count = in_order(row, cut, near, index)
    mass = weights[: row.shape[0]][:count]  # the row has been read
    exponentials(near[:count], top, ONE, ZERO, mass)
    packed[:count] = mass
    if p < ONE:
        keep_largest(near[:count], mass, target, top, packed[:count])
    return put_down(packed, index, count, weights, places)


@support_rows
def threshold_support(row: Any, top: Any, params: Any, scratch: Any, weights: Any, places: Any) -> Any:
    _, near, packed, index, _ = scratch
    rel = params[1]
    gap = f32(min(_FARTHEST, _MARGIN - math.log(rel))) if rel > ZERO else f32(2.0 * _FARTHEST)
    count = gather_above(row, top, ONE, gap, scratch)
    exponentials(near[:count], ZERO, ONE, ZERO, packed[:count])
    for c in range(count):
        packed[c] = packed[c] if packed[c] >= rel else ZERO
    return put_down(packed, index, count, weights, places)
