"""Softmax whose temperature is read off the row itself: by its entropy, or by its standard deviation."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._kernels.vector import BLOCK, NEG_INF, ONE, TINY, ZERO, block_end, f32, kernel, log, row_dot, row_max, usable
from .shaped import softmax_row, visible_count
from .softmax import exponentials, multiply, scale_gradient

# beta(H) of arXiv 2410.01104, highest power first.
_C4, _C3, _C2, _C1, _C0 = -0.037, 0.481, -2.3, 4.917, -1.791


@kernel
def sharpening(entropy: Any) -> Any:
    """beta(H) and its derivative; in float64, as the terms cancel."""
    h = entropy
    value = (((_C4 * h + _C3) * h + _C2) * h + _C1) * h + _C0
    slope = ((4.0 * _C4 * h + 3.0 * _C3) * h + 2.0 * _C2) * h + _C1
    if h > 0.5 and value > 1.0:
        return f32(value), f32(slope)
    return ONE, ZERO


@kernel
def row_entropy(weights: Any) -> Any:
    """In float64."""
    keys, total = weights.shape[0], 0.0
    start = 0
    while start < keys:
        stop = block_end(start, keys, BLOCK)
        weights_ = weights[start:stop]
        part = ZERO
        for j in range(stop - start):
            w = weights_[j]
            part -= w * log(w if w > TINY else ONE)
        total += part
        start = stop
    return total


@kernel
def entropy_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    for r in range(start, stop):
        row, out = logits[r], weights[r]
        if softmax_row(row, out):
            beta, _ = sharpening(row_entropy(out))
            if beta > ONE:
                multiply(out, ONE / exponentials(row, row_max(row), beta, ZERO, out))


@kernel
def entropy_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        row, w, g, out = logits[r], weights[r], grad[r], grad_logits[r]
        if not softmax_row(row, out):
            continue
        exact = row_entropy(out)
        beta, slope = sharpening(exact)
        entropy, dot = f32(exact), row_dot(w, g)
        to_entropy = slope * scale_gradient(g, row, w, dot, row_max(row)) if slope != ZERO else ZERO
        for j in range(row.shape[0]):
            a = out[j]
            out[j] = beta * w[j] * (g[j] - dot) - to_entropy * a * (log(a if a > TINY else ONE) + entropy)


@kernel
def deviation(row: Any, top: Any) -> Any:
    """Mean of (l - top), standard deviation, count, over the visible keys; in float64, as 1/deviation magnifies."""
    n = float(visible_count(row))
    mean = 0.0
    for j in range(row.shape[0]):
        mean += float(row[j] - top) if row[j] > NEG_INF else 0.0
    mean /= n
    variance = 0.0
    for j in range(row.shape[0]):
        d = float(row[j] - top) - mean if row[j] > NEG_INF else 0.0
        variance += d * d
    return mean, f32(np.sqrt(variance / n)), n


@kernel
def deviation_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    """params (gamma,)."""
    for r in range(start, stop):
        row, out, gamma = logits[r], weights[r], params[r if params.shape[0] > 1 else 0, 0]
        top = row_max(row)
        if usable(top, out):
            _, sd, _ = deviation(row, top)
            scale = ONE / min(sd, gamma) if sd > TINY else ZERO
            multiply(out, ONE / exponentials(row, top, scale, ZERO, out))


@kernel
def deviation_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        row, w, g, out, gamma = (
            logits[r],
            weights[r],
            grad[r],
            grad_logits[r],
            params[r if params.shape[0] > 1 else 0, 0],
        )
        top = row_max(row)
        if not usable(top, out):
            continue
        mean, sd, n = deviation(row, top)
        scale = ONE / min(sd, gamma) if sd > TINY else ZERO
        dot = row_dot(w, g)
        # scale = 1/sd falls with each logit by (l - mean) / (n sd) scale^2
        to_scale = scale_gradient(g, row, w, dot, top) if TINY < sd < gamma else ZERO
        pull = to_scale * scale * scale * scale / n
        for j in range(row.shape[0]):
            d = f32(float(row[j] - top) - mean) if row[j] > NEG_INF else ZERO
            out[j] = scale * w[j] * (g[j] - dot) - pull * d
