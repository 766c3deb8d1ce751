"""The support of rows: places and weights of the keys with a nonzero weight, and gradients on these alone.

A support kernel reads the logits of its rows from `scores` (rows, width), or computes them: given queries (rows,
depth), it multiplies these with packed keys (`abbe._kernels.sums`), a few rows at a time, and all of `scores` is
free. It leaves the support of row r in the flat `scores` and `places`: weights, in no particular order, and their
keys, counts[r] of them from starts[r] on. `shape` says which keys a row sees:

    (queries, position, nearest, farthest, keys, first key)

Row r is query i = r mod `queries` of its head, at position `position` + i, and sees the keys `nearest` to `farthest`
before it; `position` and columns count from the first key of the block, places from the first key of all. `sink` has
one extra logit per head, or none; its weight goes to sink_weights[r]. A row with NaN or +inf has weights of NaN at all
its keys.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._kernels.compiled import around, inlined, kernel
from ..._kernels.sums import LONG_BLOCK, PANEL, ROWS, Row, row_sum, score_tile, sum_over_keys
from ..._kernels.vector import NAN, NEG_INF, ONE, POS_INF, TINY, ZERO, below, exp, f32, log, maximum
from .entmax import (
    _SEGMENT,
    _VECTOR,
    LANES,
    alpha_gradient,
    entmax15_threshold,
    entmax_weights,
    gather,
    rough_sums,
    search_scratch,
    sparsemax_threshold,
    split_float32,
    sum_and_dot,
    support_weights,
    top_of_segments,
)
from .selection import keep_largest, narrow
from .shaped import visible_count
from .softmax import exponentials

_HALF = f32(0.5)
_STEPS = 12  # of Newton on the maxima of lanes, at most
_SETTLED_PEAK = 0.02  # smaller steps exclude few further keys
_ROUGHLY = 1e-3  # more than the error of rough sums
_LANES_FROM = 0.03  # of alpha - 1: below, most keys have a weight, and rough sums are too rough

_TILE = 1 << 17  # scores that a thread computes at a time: they fill half of a core's cache until they are read
_TILE_ROWS = 64  # at most: a thread takes so many rows at a time

_SOURCE = """
def {name}(scores, params, sink, shape, places, counts, starts, sink_weights, query, packed, start, stop):
    queries, position, nearest, farthest, keys, first_key = shape
    scratch = support_scratch(keys + 1)
    all_weights, all_places, end = scores.reshape(scores.size), places.reshape(places.size), start * scores.shape[1]
    tile, turned = tile_scratch(query, keys)
    tile_start, tile_stop, column = start, start, 0
    for r in range(start, stop):
        logits, at = scores[r], position + r % queries
        if query.shape[0] > 0:
            if r == tile_stop:
                tile_start, tile_stop = r, min(stop, r + tile.shape[0], r - r % queries + queries)
                begin = first_key + max(0, at - farthest)
                column = begin - begin % PANEL - first_key
                of_head = packed[r // queries * packed.shape[0] // (query.shape[0] // queries)]
                stop_key = first_key + min(keys, at + tile_stop - 1 - tile_start - nearest + 1)
                score_tile(query[tile_start:tile_stop], of_head, column + first_key, stop_key, turned, tile)
            logits = tile[r - tile_start]
        first, last = max(0, at - farthest), min(keys, at - nearest + 1)
        if sink.shape[0] > 0:  # one extra key, after the visible ones
            last = max(first, last)
            logits[last - column] = sink[r // queries]
            last += 1
        starts[r] = end
        if first >= last:
            counts[r] = 0
            continue
        row, weights, own_places = logits[first - column : last - column], all_weights[end:], all_places[end:]
        top = top_of_row(row, scratch)
        if NEG_INF < top < POS_INF:
            count = of_row(row, top, params[r if params.shape[0] > 1 else 0], scratch, weights, own_places)
        else:
            count = 0 if top == NEG_INF else spoil(weights[: last - first], own_places)
        if sink.shape[0] > 0:
            count = take_out(weights[:count], own_places, last - 1 - first, sink_weights[r : r + 1])
        if first + first_key > 0:
            for c in range(count):
                own_places[c] += first + first_key
        counts[r] = count
        end += count
"""


@kernel
def tile_scratch(query: Any, keys: int) -> Any:
    """Space for a few rows' scores and queries; the first panel may begin before the first key, the sink is last."""
    width = (keys + 1 + 2 * PANEL) if query.shape[0] > 0 else 1
    rows = min(max(_TILE // width // ROWS, 2) * ROWS, _TILE_ROWS)
    return np.empty((rows, width), np.float32), np.empty(rows * query.shape[1], np.float32)


@kernel
def support_scratch(keys: int) -> Any:
    """Lanes, near keys, their weights and places, and ones; space for at least as many near keys as lanes."""
    size = max(keys, LANES)
    lanes, near, packed, index = search_scratch(size)
    return lanes, near, packed, index, np.ones(size, np.float32)


@kernel
def lanes_of(row: Any, lanes: Any) -> Any:
    """The maxima of the lanes that this row fills."""
    return lanes[: (row.shape[0] + _SEGMENT - 1) // _SEGMENT * LANES]


@kernel
def top_of_row(row: Any, scratch: Any) -> Any:
    return top_of_segments(row, (lanes_of(row, scratch[0]), scratch[1], scratch[2], scratch[3]))


@kernel
def spoil(weights: Any, places: Any) -> Any:
    """All keys, with weights of NaN, so that all results are NaN, too."""
    weights[:] = NAN
    for j in range(weights.shape[0]):
        places[j] = j
    return weights.shape[0]


@kernel
def take_out(weights: Any, places: Any, place: int, weight: Any) -> Any:
    """Move the weight at `place` out of the support; returns how many are left."""
    count = weights.shape[0]
    weight[0] = ZERO
    for c in range(count):
        if places[c] == place:
            weight[0] = weights[c]
            weights[c], places[c] = weights[count - 1], places[count - 1]
            return count - 1
    return count


def support_rows(of_row: Any) -> Any:
    """Make a support kernel from of_row(row, top, params, scratch, weights, places), which returns the count."""
    scope = {"support_scratch": support_scratch, "top_of_row": top_of_row, "spoil": spoil, "take_out": take_out}
    scope |= {"tile_scratch": tile_scratch, "score_tile": score_tile}
    scope |= {"NEG_INF": NEG_INF, "POS_INF": POS_INF, "PANEL": PANEL}
    return kernel(around(of_row, "of_row", _SOURCE.format(name=of_row.__name__), scope))


@kernel
def gather_above(row: Any, top: Any, scale: Any, gap: Any, scratch: Any) -> Any:
    """The number of keys with scale (row - top) > -gap; their values (padded) and places are in the scratch."""
    lanes, near, _, index, _ = scratch
    count = gather(row, top, scale, gap, lanes_of(row, lanes), near, index)
    if count >= 0:
        return count
    for j in range(row.shape[0]):
        index[j] = j
    return row.shape[0]


@inlined
def padded(count: int) -> Any:
    return (count + _VECTOR - 1) // _VECTOR * _VECTOR


@inlined
def keep_above(near: Any, index: Any, count: int, tau: float, squared: bool, weights: Any, places: Any) -> Any:
    """Write the keys above the threshold, with their distance from it or its square; returns their number."""
    high, low = split_float32(tau)
    kept = 0
    for c in range(count):  # no branches: they would be mispredicted
        d = (near[c] - high) - low
        weights[kept] = d * d if squared else d
        places[kept] = index[c]
        kept += 1 if d > ZERO else 0
    return kept


@inlined
def put_down(packed: Any, factor: Any, index: Any, count: int, weights: Any, places: Any) -> Any:
    """Write the keys with a weight, times a factor; returns their number."""
    kept = 0
    for c in range(count):
        weights[kept] = packed[c] * factor
        places[kept] = index[c]
        kept += 1 if packed[c] > ZERO else 0
    return kept


@support_rows
def sparsemax_support(row: Any, top: Any, params: Any, scratch: Any, weights: Any, places: Any) -> Any:
    lanes, near, _, index, _ = scratch
    tau = sparsemax_threshold(lanes_of(row, lanes), top, params[0], -1.0)
    count = gather_above(row, top, params[0], f32(-tau), scratch)
    tau = sparsemax_threshold(near[: padded(count)], ZERO, ONE, tau)
    return keep_above(near, index, count, tau, False, weights, places)


@support_rows
def entmax15_support(row: Any, top: Any, params: Any, scratch: Any, weights: Any, places: Any) -> Any:
    lanes, near, _, index, _ = scratch
    half_scale = _HALF * params[0]
    tau = entmax15_threshold(lanes_of(row, lanes), top, half_scale, -1.0)
    count = gather_above(row, top, half_scale, f32(-tau), scratch)
    tau = entmax15_threshold(near[: padded(count)], ZERO, ONE, tau)
    return keep_above(near, index, count, tau, True, weights, places)


@kernel
def peak_of_lanes(lanes: Any, top: Any, scale: Any, beta: float, near: Any) -> float:
    """The log of the largest weight if the lane maxima were the only keys: never below that of the row.

    Newton comes down to it from 0, so it can stop anywhere.
    """
    for c in range(lanes.shape[0]):
        near[c] = maximum(below(lanes[c], top, scale), f32(-2.0 / beta))  # an absent key is far, not infinitely far
    s = 0.0
    for _ in range(_STEPS):
        total, slope, _ = rough_sums(near[: lanes.shape[0]], beta, s)
        change = math.log1p(total * math.expm1(-beta * math.log(total)) / slope) / beta
        s = min(s + change, 0.0)
        if change > -_SETTLED_PEAK:
            break
    return min(s + _ROUGHLY, 0.0)


@support_rows
def entmax_support(row: Any, top: Any, params: Any, scratch: Any, weights: Any, places: Any) -> Any:
    lanes, near, packed, index, _ = scratch
    scale, beta = params[0], float(max(params[1], f32(1e-7)))  # 1/beta must stay finite
    s = peak_of_lanes(lanes_of(row, lanes), top, scale, beta, near) if beta > _LANES_FROM else 0.0
    count = gather_above(row, top, scale, f32(math.exp(beta * s) / beta), scratch)
    entmax_weights(near[: padded(count)], beta, s, packed)
    return put_down(packed, ONE, index, count, weights, places)


# Kinds of u = w^(2 - alpha): the Jacobian of all maps here is scale (diag u - u u^T / sum u).
ONES, ROOTS, POWERS, WEIGHTS = 0, 1, 2, 3


@kernel
def diagonal(weights: Any, kind: int, beta: Any, out: Any) -> None:
    """out = u: the diagonal of the Jacobian before centring."""
    if kind == ONES:
        for j in range(weights.shape[0]):
            out[j] = ONE if weights[j] > ZERO else weights[j]  # 0, or NaN in a NaN row
    elif kind == ROOTS:
        for j in range(weights.shape[0]):
            out[j] = np.sqrt(weights[j])
    elif kind == POWERS:
        support_weights(weights, beta, out)
    else:
        out[:] = weights


@sum_over_keys(LONG_BLOCK, rounded=False, within=inlined)
def dot_with_powers(j: int, out: Row, weights: Row, beta: Any) -> Any:
    """sum of out w^beta / beta, where w^beta / beta is scale times the logit up to a constant."""
    w = weights[j]
    inside = w > TINY
    return out[j] * (exp(beta * log(w if inside else ONE)) / beta if inside else w * ZERO)


@kernel
def support_gradient(
    grad: Any, weights: Any, starts: Any, params: Any, kind: Any, sink_weights: Any, grad_sink: Any, grad_params: Any,
    start: int, stop: int,
) -> None:  # fmt: skip
    """Overwrite the gradient to the weights with that to the logits; row r is starts[r] <= e < starts[r + 1].

    The sink has no value, so the gradient to its weight is 0. grad_params is (rows, P), or (0, P) if not needed.
    """
    longest = 1
    for r in range(start, stop):
        longest = max(longest, starts[r + 1] - starts[r] + 1)
    scratch = np.empty((3, longest), np.float32)
    for r in range(start, stop):
        of_row, count = grad[starts[r] : starts[r + 1]], starts[r + 1] - starts[r]
        own, w, g = params[r if params.shape[0] > 1 else 0], weights[starts[r] : starts[r + 1]], of_row
        if sink_weights.shape[0] > 0:  # one extra key
            w, g = scratch[0, : count + 1], scratch[1, : count + 1]
            w[:count], w[count] = weights[starts[r] : starts[r + 1]], sink_weights[r]
            g[:count], g[count] = of_row, ZERO
        differentiate(g, w, own, kind[0], scratch[2, : w.shape[0]], grad_params[r : r + 1])
        if sink_weights.shape[0] > 0:
            of_row[:] = g[:count]
            grad_sink[r] = g[count]


@kernel
def differentiate(grad: Any, weights: Any, params: Any, kind: int, u: Any, of_params: Any) -> None:
    """One row, in place; `u` is scratch, of_params is (1, P) or (0, P)."""
    beta = params[1] if kind == POWERS else (ONE if kind == ONES else _HALF)
    diagonal(weights, kind, beta, u)
    total, dot = sum_and_dot(u, grad)
    mean = f32(dot / total if total > 0.0 else 0.0)
    if of_params.shape[0] > 0 and kind == POWERS:
        of_params[0, 1] = alpha_gradient(grad, weights, beta, mean)
    for j in range(weights.shape[0]):
        grad[j] = params[0] * u[j] * (grad[j] - mean)
    if of_params.shape[0] > 0 and kind != WEIGHTS:
        of_params[0, 0] = f32(dot_with_powers(grad, weights, beta) / (params[0] * params[0]))


_MARGIN = 1e-3  # in logits, more than the error of an exponential
_FARTHEST = 80.0  # below the top: e^-87 is 0


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
def put_down_selected(packed: Any, index: Any, count: int, weights: Any, places: Any) -> Any:
    """Write the selected keys, renormalised; returns their number."""
    return put_down(packed, f32(1.0 / row_sum(packed[:count])), index, count, weights, places)


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
    return put_down_selected(packed, index, count, weights, places)


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
    return put_down_selected(packed, index, count, weights, places)


@support_rows
def threshold_support(row: Any, top: Any, params: Any, scratch: Any, weights: Any, places: Any) -> Any:
    _, near, packed, index, _ = scratch
    rel = params[1]
    gap = f32(min(_FARTHEST, _MARGIN - math.log(rel))) if rel > ZERO else f32(2.0 * _FARTHEST)
    count = gather_above(row, top, ONE, gap, scratch)
    exponentials(near[:count], ZERO, ONE, ZERO, packed[:count])
    for c in range(count):
        packed[c] = packed[c] if packed[c] >= rel else ZERO
    return put_down_selected(packed, index, count, weights, places)
