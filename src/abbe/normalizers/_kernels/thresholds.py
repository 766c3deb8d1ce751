"""Sparsemax and entmax-1.5 without a sort: their threshold follows from sums over the keys above it.

The maximum of a row is taken in lanes (lane c holds keys c, c + lanes, ...), which costs no more than the plain
maximum. The threshold of the lane maxima alone is never above that of the row and usually near it, so one or two
Newton passes over the row finish the work. Params: (scale,). `entmax` uses the lanes and gradients, too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._kernels.compiled import inlined, kernel
from ..._kernels.sums import LONG_BLOCK, Row, sum_over_keys
from ..._kernels.vector import LARGEST, NEG_INF, ONE, ZERO, above, f32, maximum, row_max
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
