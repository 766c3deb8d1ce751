"""Alpha-entmax for any alpha in (1, 2], without a sort.

As in `thresholds` the maximum of a row is taken in lanes; a lane whose maximum is too far below the top is skipped
unseen, and the keys of the others are gathered before the largest weight is searched for. Params: (scale, alpha - 1).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._kernels.vector import (
    BLOCK,
    ONE,
    TINY,
    ZERO,
    below,
    block_end,
    exp,
    f32,
    kernel,
    log,
    maximum,
    minimum,
    on_or_off_edge,
    rough_power,
    row_max,
    usable,
)
from .thresholds import LANES, centre, lane_maxima, scale_share

_SEGMENT = 8 * LANES  # where lanes shall lead to single keys, a long row has lanes in each segment
_ROUNDS = 60
_VECTOR = 32  # the gathered keys are filled up to a multiple of this, so that no loop over them runs key by key
_HALF = f32(0.5)
_ROUGH_FROM = 0.03  # 1/beta magnifies the error of the rough power
_SETTLED = 6e-8  # half an eps, of the sum of a row
_SUMMED = 3e-7  # a sum this near to 1 only needs to be divided out,
_ROUNDED = 1e-5  # and so does one like this that steps no longer improve: logarithms of tiny weights round
_QUARTER = f32(0.25)


@kernel
def gather(row: Any, top: Any, scale: Any, gap: Any, lanes: Any, near: Any, index: Any) -> Any:
    """near = scale (row - top) of the keys above -gap, index = their places; returns their count.

    A negative count says that near holds the whole row, in place, because most of it may be needed. What follows
    in near, up to a multiple of _VECTOR, is far below.
    """
    keys, width = row.shape[0], lanes.shape[0]
    hot = 0
    for c in range(width):  # no branches here and below: they would be mispredicted
        index[hot] = c
        hot += 1 if below(lanes[c], top, scale) > -gap else 0
    if 8 * hot > 7 * width:
        for j in range(keys):
            near[j] = maximum(below(row[j], top, scale), -gap - gap)  # an absent key is far, not infinitely far
        near[keys : keys + _VECTOR] = -gap - gap
        return -keys
    count = 0
    first = index.shape[0] - hot  # the hot lanes move to the back, out of the way of what is gathered
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


@kernel
def entmax_sums(near: Any, beta: Any, s: float, weights: Any) -> Any:
    """w = [c + beta near]_+^(1/beta), c = e^(beta s); sums of w, w/u and w/u^2, u = 1 + beta near/c.

    The weights are those of s rounded to float32, the sums those of s itself: a factor between them.
    """
    c = math.exp(beta * s)
    slope_of_u, over_c, slope_of_c = f32(beta / c), f32(1.0 / c), f32(beta)
    high = f32(c)
    low = f32(c - high)
    inverse, peak = f32(1.0 / beta), f32(s)
    keys, total, slope, bend = near.shape[0], 0.0, 0.0, 0.0
    start = 0
    while start < keys:
        stop = block_end(start, keys, BLOCK)
        near_, weights_ = near[start:stop], weights[start:stop]
        part, part_slope, part_bend = ZERO, ZERO, ZERO
        for j in range(stop - start):
            t = slope_of_u * near_[j]
            u, exact_t = on_or_off_edge(t, near_[j], slope_of_c, high, low, over_c)
            inside = u > f32(1e-30)
            over = ONE / (u if inside else ONE)
            w = exp(peak + inverse * (log(u if inside else ONE) + (exact_t - (u - ONE)) * over)) if inside else ZERO
            weights_[j] = w
            part += w
            part_slope += w * over
            part_bend += w * over * over
        total += part
        slope += part_slope
        bend += part_bend
        start = stop
    rounded = math.exp(s - peak)
    return rounded * total, rounded * slope, rounded * bend


@kernel
def rough_sums(near: Any, beta: Any, s: float) -> Any:
    """The sums of `entmax_sums`, to three digits: enough for the first steps, and much cheaper."""
    slope_of_u = f32(beta * math.exp(-beta * s))
    inverse = f32(1.0 / beta)
    peak = f32(s / math.log(2.0))
    total, slope, bend = ZERO, ZERO, ZERO
    for j in range(near.shape[0]):
        u = ONE + slope_of_u * near[j]
        inside = u > f32(1e-30)
        over = ONE / (u if inside else ONE)
        w = rough_power(u if inside else ONE, inverse, peak) if inside else ZERO
        total += w
        slope += w * over
        bend += w * over * over
    return float(total), float(slope), float(bend)


@kernel
def entmax_weights(near: Any, beta: float, weights: Any) -> None:
    """Find s = ln(c)/beta, the log of the largest weight, such that the weights sum to 1.

    In s the problem meets softmax as beta -> 0 (a linear equation). Halley steps on the log of the sum; should
    they not settle, Newton on the 1/beta-norm of [c + beta near]_+, convex in c, comes down from s = 0.
    """
    s, change, total, off, keys = 0.0, 0.0, 1.0, 1.0, near.shape[0]
    for attempt in range(_ROUNDS):
        s = min(s + change, 0.0)
        rough = beta > _ROUGH_FROM and (attempt == 0 or (attempt == 1 and abs(change) > 1.5))
        total, slope, bend = rough_sums(near, beta, s) if rough else entmax_sums(near, beta, s, weights)
        excess, g1, before = math.log(total), slope / total, off
        off = 1.0 if rough else abs(excess)
        if off < _SUMMED or (off >= before and off < _ROUNDED):
            change = 0.0
            break
        if attempt < 8:
            g2 = (beta * slope + (1.0 - beta) * bend) / total - g1 * g1
            change = -2.0 * excess * g1 / (2.0 * g1 * g1 - excess * g2)
        elif attempt == 8:
            s, change = 0.0, 0.0
            continue
        else:
            change = math.log1p(total * math.expm1(-beta * excess) / slope) / beta
        # `shift_weights` serves all keys but those of a weight below (4 change)^(1/beta), of which there may be many.
        if abs(change) < 1e-3 and keys * math.pow(4.0 * abs(change), 1.0 / beta) < _SETTLED and not rough:
            total = 1.0
            break
    shift_weights(near, beta, s, change, f32(math.exp(s - f32(s)) / total), weights)


@kernel
def shift_weights(near: Any, beta: float, s: float, change: float, factor: Any, weights: Any) -> None:
    """Multiply by the factor, and move s by a change so small that its effect on ln w to second order will do."""
    slope_of_u = f32(beta * math.exp(-beta * s))
    first, second = f32(change), f32(0.5 * beta * change * change)
    for j in range(near.shape[0]):
        u = ONE + slope_of_u * near[j]
        over = ONE / u if u > f32(1e-30) else ZERO
        shift = over * (first + second * over * (u - ONE))
        shift = maximum(minimum(shift, _QUARTER), -_QUARTER)  # the series is for small numbers
        weights[j] *= factor * (ONE + shift * (ONE + shift * (_HALF + shift * f32(1.0 / 6.0))))


@kernel
def forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    keys = logits.shape[1]
    lanes = np.empty((keys + _SEGMENT - 1) // _SEGMENT * LANES, np.float32)
    near, packed = np.empty(keys + _VECTOR, np.float32), np.empty(keys + _VECTOR, np.float32)
    index = np.empty(keys + 2 * lanes.shape[0], np.int64)
    for r in range(start, stop):
        q = r if params.shape[0] > 1 else 0
        row, out, scale, beta = logits[r], weights[r], params[q, 0], maximum(params[q, 1], f32(1e-7))
        for g in range(lanes.shape[0] // LANES):
            lane_maxima(row[g * _SEGMENT : (g + 1) * _SEGMENT], lanes[g * LANES : (g + 1) * LANES])
        top = row_max(lanes)
        if usable(top, out):
            count = gather(row, top, scale, ONE / beta, lanes, near, index)
            filled = (abs(count) + _VECTOR - 1) // _VECTOR * _VECTOR
            if count < 0 and keys % _VECTOR == 0:
                entmax_weights(near[:keys], float(beta), out)
                continue
            entmax_weights(near[:filled], float(beta), packed)
            if count < 0:
                out[:] = packed[:keys]
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
        out[j] = exp(power * log(w if inside else ONE)) if inside else w * ZERO  # 0, or NaN of a row that was NaN


@kernel
def log_weight_slope(d: Any, beta: Any, s: Any) -> Any:
    """d ln(w) / d beta at a fixed largest weight e^s, for w = e^(s + d): -d^2 E2(beta d) - s d E1(beta d).

    E1(x) = (1 - e^-x)/x and E2(x) = (e^-x - 1 + x)/x^2 have no pole at 0, which is how alpha -> 1 stays right.
    """
    x = beta * d
    near_zero = x > f32(-0.3)
    x = x if near_zero or x < ZERO else ZERO
    y = x if near_zero else ZERO
    e1 = ONE - y * (f32(1 / 2) - y * (f32(1 / 6) - y * (f32(1 / 24) - y * (f32(1 / 120) - y * f32(1 / 720)))))
    e2 = f32(1 / 2) - y * (f32(1 / 6) - y * (f32(1 / 24) - y * (f32(1 / 120) - y * f32(1 / 720))))
    far = ONE if near_zero else x
    grown = exp(-far)
    e1 = e1 if near_zero else (ONE - grown) / far
    e2 = e2 if near_zero else (grown - ONE + far) / (far * far)
    return -d * (d * e2 + s * e1)


@kernel
def alpha_gradient(grad: Any, weights: Any, beta: Any, mean: Any) -> Any:
    """sum_i w_i slope_i (grad_i - mean): the mean under u takes out the change of the largest weight."""
    s = log(maximum(row_max(weights), TINY))
    keys, total = weights.shape[0], 0.0
    start = 0
    while start < keys:
        stop = block_end(start, keys, BLOCK)
        weights_, grad_ = weights[start:stop], grad[start:stop]
        part = ZERO
        for j in range(stop - start):
            w = weights_[j]
            inside = w > TINY
            slope = log_weight_slope(log(w) - s if inside else ZERO, beta, s)
            part += w * slope * (grad_[j] - mean) if inside else w * ZERO  # as in support_weights
        total += part
        start = stop
    return f32(total)


@kernel
def backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        q = r if params.shape[0] > 1 else 0
        scale, beta = params[q, 0], params[q, 1]
        support_weights(weights[r], beta, grad_logits[r])
        mean = centre(grad[r], scale, grad_logits[r])
        if grad_params.shape[0] > 0:
            grad_params[r, 0] = scale_share(logits[r], grad_logits[r], scale)
            grad_params[r, 1] = alpha_gradient(grad[r], weights[r], beta, mean)
