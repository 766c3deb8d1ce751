"""Sparsemax, entmax-1.5 (params (scale,)) and alpha-entmax for any alpha in (1, 2] (scale, alpha - 1), without a sort.

Their threshold follows from sums over the keys above it. The maximum of a row is taken in lanes (lane c holds keys c,
c + lanes, ...), which costs no more than the plain maximum. The threshold of the lane maxima alone is never above that
of the row and usually near it, so one or two Newton passes over the row finish the work. For other alphas a lane whose
maximum is too far below the top is skipped, and the keys of the others are gathered before the search for the largest
weight.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._kernels.compiled import inlined, kernel
from ..._kernels.sums import BLOCK, LONG_BLOCK, Row, sum_over_keys
from ..._kernels.vector import (
    LARGEST,
    NEG_INF,
    ONE,
    TINY,
    ZERO,
    above,
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

LANES = 64  # four vectors of 512 bits: enough independent maxima to hide the latency of one
_ROUNDS = 60  # of Newton; a handful is typical, the limit keeps a loop over bad rows finite
_HALF = f32(0.5)
_SETTLED = 6e-8  # half an eps, of the sum of a row


@kernel
def lane_maxima(row: Any, lanes: Any) -> None:
    """Maxima of LANES lanes; the fixed trip count gives straight vector code."""
    keys = row.shape[0]
    whole = keys - keys % LANES
    lanes[:] = NEG_INF
    for start in range(0, whole, LANES):
        for c in range(LANES):
            lanes[c] = maximum(lanes[c], row[start + c])
    for c in range(keys - whole):
        lanes[c] = maximum(lanes[c], row[whole + c])


@kernel
def lanes_scratch(keys: int) -> Any:
    return np.empty(LANES, np.float32)


@kernel
def top_of_lanes(row: Any, lanes: Any) -> Any:
    lane_maxima(row, lanes)
    return row_max(lanes)


@inlined
def split_float32(tau: float) -> Any:
    """tau as the sum of two float32."""
    high = f32(tau)
    return high, f32(tau - high)


@sum_over_keys(LONG_BLOCK, sums=2, rounded=False, within=inlined)
def sparsemax_sums(j: int, row: Row, top: Any, scale: Any, high: Any, low: Any) -> Any:
    """sum of [scale (row - top) - tau]_+, and how many keys are above tau = high + low."""
    d = above(row[j], top, scale, high, low)
    return maximum(d, ZERO), ONE if d > ZERO else ZERO


@kernel
def sparsemax_threshold(row: Any, top: Any, scale: Any, tau: float) -> float:
    """Raise tau to the root of sum [scale (row - top) - tau]_+ = 1: finitely many Newton steps from its left."""
    before = 0.0
    for _ in range(_ROUNDS):
        high, low = split_float32(tau)
        total, support = sparsemax_sums(row, top, scale, high, low)
        tau += (total - 1.0) / support
        if support == before:  # the support has settled, so the step was exact
            break
        before = support
    return tau


@forward_rows(scratch=lanes_scratch, top=top_of_lanes)
def sparsemax_forward(row: Any, top: Any, params: Any, out: Any, lanes: Any) -> None:
    scale = params[0]
    if scale == ZERO:
        equal_weights(row, out)
        return
    # At -1 the top key alone has weight 1, so the root is not below; the lanes then bring tau near it.
    tau = sparsemax_threshold(lanes, top, scale, -1.0)
    high, low = split_float32(sparsemax_threshold(row, top, scale, tau))
    for j in range(row.shape[0]):
        out[j] = maximum(above(row[j], top, scale, high, low), ZERO)


@sum_over_keys(LONG_BLOCK, sums=2, rounded=False, within=inlined)
def entmax15_sums(j: int, row: Row, top: Any, half_scale: Any, high: Any, low: Any) -> Any:
    """sums of d = [half_scale (row - top) - tau]_+ and of d^2, tau = high + low."""
    d = maximum(above(row[j], top, half_scale, high, low), ZERO)
    return d, d * d


@kernel
def entmax15_threshold(row: Any, top: Any, half_scale: Any, tau: float) -> float:
    """Raise tau to the root of ||[half_scale (row - top) - tau]_+||_2 = 1 by Newton: the norm is convex in tau."""
    keys = row.shape[0]
    for _ in range(_ROUNDS):
        high, low = split_float32(tau)
        total, squares = entmax15_sums(row, top, half_scale, high, low)
        step = (squares - math.sqrt(squares)) / total
        tau += step
        # Convergence is quadratic: after this step the sum is off by at most keys step^2.
        if not keys * step * step > _SETTLED:
            break
    return tau


@forward_rows(scratch=lanes_scratch, top=top_of_lanes)
def entmax15_forward(row: Any, top: Any, params: Any, out: Any, lanes: Any) -> None:
    half_scale = _HALF * params[0]
    if half_scale == ZERO:
        equal_weights(row, out)
        return
    # From -1, as in sparsemax.
    tau = entmax15_threshold(lanes, top, half_scale, -1.0)
    high, low = split_float32(entmax15_threshold(row, top, half_scale, tau))
    for j in range(row.shape[0]):
        d = maximum(above(row[j], top, half_scale, high, low), ZERO)
        out[j] = d * d


@sum_over_keys(LONG_BLOCK, sums=2, rounded=False, within=inlined)
def sum_and_dot(j: int, u: Row, grad: Row) -> Any:
    return u[j], u[j] * grad[j]


@kernel
def centre(grad: Any, scale: Any, out: Any) -> Any:
    """out = scale u (grad - mean of grad under u), given u in out; returns that mean."""
    total, dot = sum_and_dot(out, grad)
    # A row without keys has no u: its gradient is 0.
    mean = f32(dot / total if total > 0.0 else 0.0)
    for j in range(grad.shape[0]):
        out[j] = scale * out[j] * (grad[j] - mean)
    return mean


@sum_over_keys(LONG_BLOCK, rounded=False, within=inlined)
def dot_with_offsets(j: int, out: Row, row: Row, top: Any) -> Any:
    return out[j] * (maximum(row[j] - top, -LARGEST) if row[j] > NEG_INF else ZERO)  # never infinite: 0 times it is NaN


@kernel
def scale_share(row: Any, out: Any, scale: Any) -> Any:
    """Gradient to the scale, from the gradient to the logits."""
    # The gradient to the logits sums to 0, so the top may be subtracted: the products stay small.
    return f32(dot_with_offsets(out, row, row_max(row)) / scale if scale > ZERO else 0.0)


@inlined
def finish_gradient(grad: Any, row: Any, scale: Any, out: Any, of_params: Any) -> Any:
    """Gradients to the logits and, if needed, to the scale, given u in out; returns the mean of `centre`."""
    mean = centre(grad, scale, out)
    if of_params.shape[0] > 0:
        of_params[0, 0] = scale_share(row, out, scale)
    return mean


@backward_rows()
def sparsemax_backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    for j in range(row.shape[0]):
        out[j] = ONE if weights[j] > ZERO else weights[j]  # 0, or NaN in a NaN row
    finish_gradient(grad, row, params[0], out, of_params)


@backward_rows()
def entmax15_backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    for j in range(row.shape[0]):
        # u = w^(2 - alpha), alpha = 1.5
        out[j] = np.sqrt(weights[j])
    finish_gradient(grad, row, params[0], out, of_params)


_SEGMENT = 8 * LANES  # a long row has lanes in each segment, so that a lane leads to few keys
_VECTOR = 32  # the gathered keys are padded to a multiple of this, so that no loop over them runs key by key
_EDGE = f32(1e-30)  # a key with u at most this is off the support: 1/u must stay finite in float32
_ROUGH_FROM = 0.03  # of beta: 1/beta amplifies the error of the rough power
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
        # `shift_weights` is right for all keys but those of weight below (4 change)^(1/beta), which may be many;
        # beyond a change of 1e-3 its series, which ends at the second order, would show in the last digits.
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
def entmax_forward(row: Any, top: Any, params: Any, out: Any, scratch: Any) -> None:
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
    w, g = weights[j], grad[j]
    inside = w > TINY
    slope = log_weight_slope(log(w) - s if inside else ZERO, beta, s)
    return w * slope * (g - mean) if inside else w * ZERO  # as in support_weights


@kernel
def alpha_gradient(grad: Any, weights: Any, beta: Any, mean: Any) -> Any:
    """sum_i w_i slope_i (grad_i - mean): the mean under u removes the change of the largest weight."""
    s = log(maximum(row_max(weights), TINY))
    return alpha_terms(weights, grad, beta, s, mean)


@backward_rows()
def entmax_backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    support_weights(weights, params[1], out)
    mean = finish_gradient(grad, row, params[0], out, of_params)
    if of_params.shape[0] > 0:
        of_params[0, 1] = alpha_gradient(grad, weights, params[1], mean)
