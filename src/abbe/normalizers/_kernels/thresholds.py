"""Sparsemax and entmax-1.5 without a sort: their threshold follows from sums over the keys above it.

The maximum of a row is taken in lanes (lane c holds keys c, c + lanes, ...), which costs no more than the plain
maximum. The threshold of the lane maxima alone is never above that of the row and mostly near it, so one or two
Newton passes over the row finish the work. Params: (scale,). Lanes and gradients serve general alpha (`entmax`), too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._kernels.vector import (
    LONG_BLOCK,
    NEG_INF,
    ONE,
    ZERO,
    above,
    block_end,
    f32,
    kernel,
    maximum,
    row_max,
    usable,
)

LANES = 64
_ROUNDS = 60
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
def sparsemax_threshold(row: Any, top: Any, scale: Any, tau: float) -> float:
    """Raise tau to the root of sum [scale (row - top) - tau]_+ = 1: finitely many Newton steps from its left."""
    keys, before = row.shape[0], 0.0
    for _ in range(_ROUNDS):
        high = f32(tau)
        low = f32(tau - high)
        total, support = 0.0, 0.0
        start = 0
        while start < keys:
            stop = block_end(start, keys, LONG_BLOCK)
            row_ = row[start:stop]
            part, part_support = ZERO, ZERO
            for j in range(stop - start):
                d = above(row_[j], top, scale, high, low)
                part += maximum(d, ZERO)
                part_support += ONE if d > ZERO else ZERO
            total += part
            support += part_support
            start = stop
        tau += (total - 1.0) / support
        if support == before:  # the support has settled, so the step was exact
            break
        before = support
    return tau


@kernel
def sparsemax_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    lanes = np.empty(LANES, np.float32)
    for r in range(start, stop):
        row, out, scale = logits[r], weights[r], params[r if params.shape[0] > 1 else 0, 0]
        lane_maxima(row, lanes)
        top = row_max(lanes)
        if usable(top, out):
            tau = sparsemax_threshold(lanes, top, scale, -1.0)
            tau = sparsemax_threshold(row, top, scale, tau)
            high = f32(tau)
            low = f32(tau - high)
            for j in range(row.shape[0]):
                out[j] = maximum(above(row[j], top, scale, high, low), ZERO)


@kernel
def entmax15_threshold(row: Any, top: Any, half_scale: Any, tau: float) -> float:
    """Raise tau to the root of ||[half_scale (row - top) - tau]_+||_2 = 1: Newton, the norm is convex in tau."""
    keys = row.shape[0]
    for _ in range(_ROUNDS):
        high = f32(tau)
        low = f32(tau - high)
        total, squares = 0.0, 0.0
        start = 0
        while start < keys:
            stop = block_end(start, keys, LONG_BLOCK)
            row_ = row[start:stop]
            part, part_squares = ZERO, ZERO
            for j in range(stop - start):
                d = maximum(above(row_[j], top, half_scale, high, low), ZERO)
                part += d
                part_squares += d * d
            total += part
            squares += part_squares
            start = stop
        step = (squares - math.sqrt(squares)) / total
        tau += step
        # Convergence is quadratic: what this step leaves of the sum is at most keys step^2.
        if not keys * step * step > _SETTLED:
            break
    return tau


@kernel
def entmax15_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    lanes = np.empty(LANES, np.float32)
    for r in range(start, stop):
        row, out, half_scale = logits[r], weights[r], _HALF * params[r if params.shape[0] > 1 else 0, 0]
        lane_maxima(row, lanes)
        top = row_max(lanes)
        if usable(top, out):
            tau = entmax15_threshold(lanes, top, half_scale, -1.0)
            tau = entmax15_threshold(row, top, half_scale, tau)
            high = f32(tau)
            low = f32(tau - high)
            for j in range(row.shape[0]):
                d = maximum(above(row[j], top, half_scale, high, low), ZERO)
                out[j] = d * d


@kernel
def centre(grad: Any, scale: Any, out: Any) -> Any:
    """out = scale u (grad - mean of grad under u), given u in out; returns that mean."""
    keys, total, dot = grad.shape[0], 0.0, 0.0
    start = 0
    while start < keys:
        stop = block_end(start, keys, LONG_BLOCK)
        out_, grad_ = out[start:stop], grad[start:stop]
        part, part_dot = ZERO, ZERO
        for j in range(stop - start):
            part += out_[j]
            part_dot += out_[j] * grad_[j]
        total += part
        dot += part_dot
        start = stop
    mean = f32(dot / total if total > 0.0 else 0.0)
    for j in range(grad.shape[0]):
        out[j] = scale * out[j] * (grad[j] - mean)
    return mean


@kernel
def scale_share(row: Any, out: Any, scale: Any) -> Any:
    """Gradient to the scale, from the gradient to the logits."""
    keys, top, total = row.shape[0], row_max(row), 0.0
    start = 0
    while start < keys:
        stop = block_end(start, keys, LONG_BLOCK)
        out_, row_ = out[start:stop], row[start:stop]
        part = ZERO
        for j in range(stop - start):
            part += out_[j] * (row_[j] - top if row_[j] > NEG_INF else ZERO)
        total += part
        start = stop
    return f32(total / scale if scale > ZERO else 0.0)


@kernel
def sparsemax_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        w, out, scale = weights[r], grad_logits[r], params[r if params.shape[0] > 1 else 0, 0]
        for j in range(w.shape[0]):
            out[j] = ONE if w[j] > ZERO else w[j]  # 0, or NaN of a row that was NaN
        centre(grad[r], scale, out)
        if grad_params.shape[0] > 0:
            grad_params[r, 0] = scale_share(logits[r], out, scale)


@kernel
def entmax15_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        w, out, scale = weights[r], grad_logits[r], params[r if params.shape[0] > 1 else 0, 0]
        for j in range(w.shape[0]):
            out[j] = np.sqrt(w[j])
        centre(grad[r], scale, out)
        if grad_params.shape[0] > 0:
            grad_params[r, 0] = scale_share(logits[r], out, scale)
