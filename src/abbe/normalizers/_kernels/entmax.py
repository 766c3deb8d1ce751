"""Alpha-entmax for any alpha in (1, 2], without a sort.

As in `thresholds` the maximum of a row is taken in lanes; a lane whose maximum is too far below the top is skipped, and
the keys of the others are gathered before the search for the largest weight. Params: (scale, alpha - 1).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._kernels.compiled import inlined, kernel
from ..._kernels.sums import BLOCK, Row, sum_over_keys
from ..._kernels.vector import (
    ONE,
    TINY,
    ZERO,
    below,
    copy_row,
    exp,
    f32,
    log,
    maximum,
    minimum,
    on_or_off_edge,
    rough_power,
    row_max,
)
from .rows import backward_rows, forward_rows
from .softmax import equal_weights
from .thresholds import LANES, finish_gradient, lane_maxima, split_float32

_SEGMENT = 8 * LANES  # a long row has lanes in each segment, so that a lane leads to few keys
_ROUNDS = 60  # at most: a handful is typical, unless rounding keeps steps alive
_VECTOR = 32  # the gathered keys are padded to a multiple of this, so that no loop over them runs key by key
_EDGE = f32(1e-30)  # a key with u at most this is off the support: 1/u must stay finite in float32
_HALF = f32(0.5)
_ROUGH_FROM = 0.03  # of beta: 1/beta amplifies the error of the rough power
_SETTLED = 6e-8  # half an eps, of the sum of a row
_SUMMED = 3e-7  # a sum this close to 1 only needs to be divided out,
_ROUNDED = 1e-5  # and so does one this close that steps no longer improve: logarithms of tiny weights round
_QUARTER = f32(0.25)
_HALLEY = 8  # steps; if they have not settled by then, the safe Newton begins


@kernel
def gather(row: Any, top: Any, scale: Any, gap: Any, lanes: Any, near: Any, index: Any) -> Any:
    """near = scale (row - top) of the keys above -gap, index = their places; returns their count.

    A negative count means that near holds the whole row, in place, because most of it may be needed. The padding of
    near, up to a multiple of _VECTOR, is far below.
    """
    keys, width = row.shape[0], lanes.shape[0]
    hot = 0
    for c in range(width):  # no branches, here and below: they would be mispredicted
        index[hot] = c
        hot += 1 if below(lanes[c], top, scale) > -gap else 0
    if 8 * hot > 7 * width:  # gathering nearly all costs more than taking all
        for j in range(keys):
            near[j] = maximum(below(row[j], top, scale), -gap - gap)  # an absent key is far, not infinitely far
        near[keys : keys + _VECTOR] = -gap - gap
        return -keys
    count = 0
    first = index.shape[0] - hot  # the hot lanes move to the back, out of the way of the gathered keys
    for h in range(hot):
        index[first + h] = index[h]
    for h in range(hot):
        lane = index[first + h]
        start = lane // LANES * _SEGMENT
        for j in range(start + lane % LANES, min(start + _SEGMENT, keys), LANES):
            z = below(row[j], top, scale)
            near[count] = z
            index[count] = j
            count += 1 if z > -gap else 0
    near[count : count + _VECTOR] = -gap - gap
    return count


@sum_over_keys(BLOCK, sums=3, rounded=False, within=inlined)
def entmax_terms(
    j: int, near: Row, slope_of_u: Any, slope_of_c: Any, high: Any, low: Any, over_c: Any, inverse: Any, peak: Any,
    weights: Row,
) -> Any:  # fmt: skip
    """weights = e^peak u^inverse; sums of w, w/u and w/u^2, u = 1 + slope_of_u near."""
    u, exact_t = on_or_off_edge(slope_of_u * near[j], near[j], slope_of_c, high, low, over_c)
    inside = u > _EDGE
    over = ONE / (u if inside else ONE)
    w = exp(peak + inverse * (log(u if inside else ONE) + (exact_t - (u - ONE)) * over)) if inside else ZERO
    weights[j] = w
    return w, w * over, w * over * over


@kernel
def entmax_sums(near: Any, beta: Any, s: float, weights: Any) -> Any:
    """w = [c + beta near]_+^(1/beta), c = e^(beta s); sums of w, w/u and w/u^2, u = 1 + beta near/c.

    The weights are at s rounded to float32, the sums at s itself: they differ by a factor.
    """
    c = math.exp(beta * s)
    high, low = split_float32(c)
    inverse, peak = f32(1.0 / beta), f32(s)
    total, slope, bend = entmax_terms(near, f32(beta / c), f32(beta), high, low, f32(1.0 / c), inverse, peak, weights)
    rounded = math.exp(s - peak)
    return rounded * total, rounded * slope, rounded * bend


@kernel
def rough_sums(near: Any, beta: Any, s: float) -> Any:
    """The sums of `entmax_sums` to three digits: enough for the first steps, and much cheaper."""
    slope_of_u = f32(beta * math.exp(-beta * s))
    inverse = f32(1.0 / beta)
    peak = f32(s / math.log(2.0))
    total, slope, bend = ZERO, ZERO, ZERO
    for j in range(near.shape[0]):
        u = ONE + slope_of_u * near[j]
        inside = u > _EDGE
        over = ONE / (u if inside else ONE)
        w = rough_power(u if inside else ONE, inverse, peak) if inside else ZERO
        total += w
        slope += w * over
        bend += w * over * over
    return float(total), float(slope), float(bend)


@kernel
def entmax_weights(near: Any, beta: float, first: float, weights: Any) -> None:
    """Find s = ln(c)/beta, the log of the largest weight, such that the weights sum to 1, starting at `first`.

    In s the problem becomes softmax as beta -> 0 (a linear equation). Halley steps on the log of the sum; if they do
    not settle, Newton on the 1/beta-norm of [c + beta near]_+, convex in c, comes down from s = 0.
    """
    s, change, total, off, keys = first, 0.0, 1.0, 1.0, near.shape[0]
    for attempt in range(_ROUNDS):
        # The largest weight is at most 1.
        s = min(s + change, 0.0)
        # After a change of 1.5 in s the next one is large, too: three digits are enough once more.
        rough = first == 0.0 and beta > _ROUGH_FROM and (attempt == 0 or (attempt == 1 and abs(change) > 1.5))
        total, slope, bend = rough_sums(near, beta, s) if rough else entmax_sums(near, beta, s, weights)
        excess, g1, before = math.log(total), slope / total, off
        off = 1.0 if rough else abs(excess)
        # The remainder is rounding: dividing by the sum removes it, another step would not.
        if off < _SUMMED or (off >= before and off < _ROUNDED):
            change = 0.0
            break
        if attempt < _HALLEY:
            g2 = (beta * slope + (1.0 - beta) * bend) / total - g1 * g1
            change = -2.0 * excess * g1 / (2.0 * g1 * g1 - excess * g2)
        elif attempt == _HALLEY:
            s, change = 0.0, 0.0
            continue
        else:
            change = math.log1p(total * math.expm1(-beta * excess) / slope) / beta
        # `shift_weights` is right for all keys but those of weight below (4 change)^(1/beta), which may be many.
        if abs(change) < 1e-3 and keys * math.pow(4.0 * abs(change), 1.0 / beta) < _SETTLED and not rough:
            total = 1.0
            break
    shift_weights(near, beta, s, change, f32(math.exp(s - f32(s)) / total), weights)


@kernel
def shift_weights(near: Any, beta: float, s: float, change: float, factor: Any, weights: Any) -> None:
    """Multiply by the factor, and move s by a change so small that its second-order effect on ln w is enough."""
    slope_of_u = f32(beta * math.exp(-beta * s))
    first, second = f32(change), f32(0.5 * beta * change * change)
    for j in range(near.shape[0]):
        u = ONE + slope_of_u * near[j]
        over = ONE / u if u > _EDGE else ZERO
        shift = over * (first + second * over * (u - ONE))
        shift = maximum(minimum(shift, _QUARTER), -_QUARTER)  # the series is for small numbers
        weights[j] *= factor * (ONE + shift * (ONE + shift * (_HALF + shift * f32(1.0 / 6.0))))


@kernel
def search_scratch(keys: int) -> Any:
    """Lanes, near keys, their weights and their places."""
    lanes = np.empty((keys + _SEGMENT - 1) // _SEGMENT * LANES, np.float32)
    near, packed = np.empty(keys + _VECTOR, np.float32), np.empty(keys + _VECTOR, np.float32)
    return lanes, near, packed, np.empty(keys + 2 * lanes.shape[0], np.int64)


@kernel
def top_of_segments(row: Any, scratch: Any) -> Any:
    lanes = scratch[0]
    for g in range(lanes.shape[0] // LANES):
        lane_maxima(row[g * _SEGMENT : (g + 1) * _SEGMENT], lanes[g * LANES : (g + 1) * LANES])
    return row_max(lanes)


@forward_rows(scratch=search_scratch, top=top_of_segments)
def forward(row: Any, top: Any, params: Any, out: Any, scratch: Any) -> None:
    lanes, near, packed, index = scratch
    keys, beta = row.shape[0], maximum(params[1], f32(1e-7))  # 1/beta is needed, and stays finite
    if params[0] == ZERO:
        equal_weights(row, out)
        return
    # A key 1/beta below the top has no weight, wherever the threshold is.
    count = gather(row, top, params[0], ONE / beta, lanes, near, index)
    # The whole row in whole vectors: it is done in place, without a copy.
    if count < 0 and keys % _VECTOR == 0:
        entmax_weights(near[:keys], float(beta), 0.0, out)
        return
    filled = (abs(count) + _VECTOR - 1) // _VECTOR * _VECTOR
    entmax_weights(near[:filled], float(beta), 0.0, packed)
    if count < 0:
        copy_row(packed, out)
    else:
        out[:] = ZERO
        for c in range(count):
            out[index[c]] = packed[c]


@kernel
def support_weights(weights: Any, beta: Any, out: Any) -> None:
    """out = w^(1 - beta) on the support, 0 off it: the diagonal of the Jacobian before centring."""
    power = ONE - beta
    for j in range(weights.shape[0]):
        w = weights[j]
        inside = w > TINY
        out[j] = exp(power * log(w if inside else ONE)) if inside else w * ZERO  # 0, or NaN in a NaN row


@kernel
def log_weight_slope(d: Any, beta: Any, s: Any) -> Any:
    """d ln(w) / d beta at a fixed largest weight e^s, for w = e^(s + d): -d^2 E2(beta d) - s d E1(beta d).

    E1(x) = (1 - e^-x)/x and E2(x) = (e^-x - 1 + x)/x^2 have no pole at 0, which keeps alpha -> 1 accurate.
    """
    x = beta * d
    near_zero = x > f32(-0.3)  # there the series below are exact to float32, and the closed forms cancel
    x = x if near_zero or x < ZERO else ZERO
    y = x if near_zero else ZERO
    e1 = ONE - y * (f32(1 / 2) - y * (f32(1 / 6) - y * (f32(1 / 24) - y * (f32(1 / 120) - y * f32(1 / 720)))))
    e2 = f32(1 / 2) - y * (f32(1 / 6) - y * (f32(1 / 24) - y * (f32(1 / 120) - y * f32(1 / 720))))
    far = ONE if near_zero else x
    grown = exp(-far)
    e1 = e1 if near_zero else (ONE - grown) / far
    e2 = e2 if near_zero else (grown - ONE + far) / (far * far)
    return -d * (d * e2 + s * e1)


@sum_over_keys(BLOCK, within=inlined)
def alpha_terms(j: int, weights: Row, grad: Row, beta: Any, s: Any, mean: Any) -> Any:
    w = weights[j]
    inside = w > TINY
    slope = log_weight_slope(log(w) - s if inside else ZERO, beta, s)
    return w * slope * (grad[j] - mean) if inside else w * ZERO  # as in support_weights


@kernel
def alpha_gradient(grad: Any, weights: Any, beta: Any, mean: Any) -> Any:
    """sum_i w_i slope_i (grad_i - mean): the mean under u removes the change of the largest weight."""
    s = log(maximum(row_max(weights), TINY))
    return alpha_terms(weights, grad, beta, s, mean)


@backward_rows()
def backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    support_weights(weights, params[1], out)
    mean = finish_gradient(grad, row, params[0], out, of_params)
    if of_params.shape[0] > 0:
        of_params[0, 1] = alpha_gradient(grad, weights, params[1], mean)
