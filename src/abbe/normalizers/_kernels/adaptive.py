"""Softmax whose temperature follows from the row itself: from its entropy, or from its standard deviation."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._kernels.compiled import kernel
from ..._kernels.sums import BLOCK, Row, row_dot, row_sum, sum_over_keys
from ..._kernels.vector import LARGEST, NEG_INF, ONE, TINY, ZERO, exp, f32, half_below, log, row_max, usable
from .rows import backward_rows, forward_rows
from .shaped import softmax_below, softmax_row, visible_count
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


@sum_over_keys(BLOCK, rounded=False)
def row_entropy(j: int, weights: Row) -> Any:
    w = weights[j]
    return -(w * log(w if w > TINY else ONE))


@forward_rows()
def entropy_forward(row: Any, top: Any, params: Any, out: Any) -> None:
    softmax_below(row, top, out)
    beta, _ = sharpening(row_entropy(out))
    if beta > ONE:
        multiply(out, ONE / exponentials(row, top, beta, ZERO, out))


@backward_rows()
def entropy_backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    if not softmax_row(row, out):
        return
    exact = row_entropy(out)
    beta, slope = sharpening(exact)
    entropy, dot = f32(exact), row_dot(weights, grad)
    to_entropy = slope * scale_gradient(grad, row, weights, dot, row_max(row)) if slope != ZERO else ZERO
    for j in range(row.shape[0]):
        a = out[j]
        out[j] = beta * weights[j] * (grad[j] - dot) - to_entropy * a * (log(a if a > TINY else ONE) + entropy)


@kernel
def deviation(row: Any, top: Any) -> Any:
    """Mean of (l - top), standard deviation, count, over the visible keys; in float64, as 1/deviation amplifies."""
    n = float(visible_count(row))
    mean = 0.0
    for j in range(row.shape[0]):
        mean += 2.0 * half_below(row[j], top) if row[j] > NEG_INF else 0.0
    mean /= n
    variance = 0.0
    for j in range(row.shape[0]):
        d = 2.0 * half_below(row[j], top) - mean if row[j] > NEG_INF else 0.0
        variance += d * d
    return mean, f32(np.sqrt(variance / n)), n


@forward_rows()
def deviation_forward(row: Any, top: Any, params: Any, out: Any) -> None:
    """params (gamma,)."""
    _, sd, _ = deviation(row, top)
    scale = ONE / min(sd, params[0]) if sd > TINY else ZERO
    if scale < TINY and sd > ONE:  # the range may overflow, and still not decide
        for j in range(row.shape[0]):
            out[j] = exp(scale * half_below(row[j], top) * f32(2.0))
        multiply(out, f32(1.0 / row_sum(out)))
    else:
        multiply(out, ONE / exponentials(row, top, scale, ZERO, out))


@backward_rows()
def deviation_backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    top, gamma = row_max(row), params[0]
    if not usable(top, out):
        return
    mean, sd, n = deviation(row, top)
    scale = ONE / min(sd, gamma) if sd > TINY else ZERO
    dot = row_dot(weights, grad)
    # scale = 1/sd falls with each logit by (l - mean) / (n sd) scale^2
    to_scale = scale_gradient(grad, row, weights, dot, top) if TINY < sd < gamma else ZERO
    pull = to_scale * scale * scale * scale / n
    for j in range(row.shape[0]):
        d = 2.0 * half_below(row[j], top) - mean if row[j] > NEG_INF else 0.0
        d = f32(min(max(d, -LARGEST), LARGEST))
        out[j] = scale * weights[j] * (grad[j] - dot) - pull * d
