"""Softmax with a scale and optionally a sink: params are (scale,) or (scale, sink)."""

from __future__ import annotations

from typing import Any

from ..._kernels.compiled import inlined, kernel
from ..._kernels.sums import BLOCK, LONG_BLOCK, Row, row_dot, row_sum, sum_over_keys
from ..._kernels.vector import LARGEST, NEG_INF, ONE, ZERO, exp, f32, maximum, minimum, row_max
from .rows import backward_rows, forward_rows


@sum_over_keys(BLOCK)
def exponentials(j: int, row: Row, top: Any, scale: Any, shift: Any, out: Row) -> Any:
    """out = exp(scale (row - top) - shift); returns its sum."""
    e = exp(scale * (row[j] - top) - shift)
    out[j] = e
    return e


@kernel
def multiply(out: Any, factor: Any) -> None:
    for j in range(out.shape[0]):
        out[j] *= factor


@kernel
def equal_weights(row: Any, out: Any) -> None:
    """The weights at a scale of 0, which times the infinite gap of an absent or very low key would be NaN."""
    for j in range(row.shape[0]):
        out[j] = ONE if row[j] > NEG_INF else ZERO
    multiply(out, f32(1.0 / row_sum(out)))


@forward_rows()
def softmax_forward(row: Any, top: Any, params: Any, out: Any) -> None:
    if params[0] == ZERO:
        equal_weights(row, out)
    else:
        multiply(out, ONE / exponentials(row, top, params[0], ZERO, out))


@kernel
def centred(grad: Any, weights: Any, scale: Any, dot: Any, out: Any) -> None:
    for j in range(grad.shape[0]):
        out[j] = scale * weights[j] * (grad[j] - dot)


@sum_over_keys(LONG_BLOCK)
def scale_gradient(j: int, grad: Row, row: Row, weights: Row, dot: Any, top: Any) -> Any:
    """sum_j w_j (g_j - dot) (l_j - top) over visible keys: the gradient to a common scale of the row."""
    offset = maximum(row[j] - top, -LARGEST) if row[j] > NEG_INF else ZERO  # never infinite: 0 times that is NaN
    return weights[j] * (grad[j] - dot) * offset


@inlined
def row_gradient(grad: Any, row: Any, weights: Any, scale: Any, out: Any, of_params: Any) -> Any:
    """Gradient to the logits and, if wanted, to the scale; returns w . grad."""
    dot = row_dot(weights, grad)
    centred(grad, weights, scale, dot, out)
    if of_params.shape[0] > 0:
        top = maximum(row_max(row), -LARGEST)  # a row without keys has no top, and -inf - -inf is NaN
        of_params[0, 0] = scale_gradient(grad, row, weights, dot, top)
    return dot


@backward_rows()
def softmax_backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    row_gradient(grad, row, weights, params[0], out, of_params)


@forward_rows()
def sink_forward(row: Any, top: Any, params: Any, out: Any) -> None:
    above = minimum(params[1] - params[0] * top, LARGEST)
    shift = maximum(above, ZERO)  # relative to the sink if it is the largest: its exponential could overflow
    total = exponentials(row, top, params[0], shift, out) + exp(above - shift)
    multiply(out, ONE / total)


@backward_rows()
def sink_backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    dot = row_gradient(grad, row, weights, params[0], out, of_params)
    if of_params.shape[0] == 0:
        return
    top = row_max(row)
    if top != NEG_INF:
        # The sink's weight follows from the largest weight; 1 - sum would cancel, and serves where that underflows.
        above = params[1] - params[0] * top
        lost = row_max(weights) * exp(above) if above < f32(40.0) else f32(1.0 - row_sum(weights))
        # Logits were scaled relative to their top, the sink was not: add the top's part of the scale gradient.
        of_params[0, 0] += top * dot * lost if lost != ZERO else ZERO  # top * dot may be infinite
        of_params[0, 1] = -lost * dot
