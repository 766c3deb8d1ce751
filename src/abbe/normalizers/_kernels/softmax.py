"""Softmax with a scale and, if wanted, a sink: params are (scale,) or (scale, sink)."""

from __future__ import annotations

from typing import Any

from ..._kernels.vector import (
    BLOCK,
    LONG_BLOCK,
    NEG_INF,
    ONE,
    ZERO,
    block_end,
    exp,
    f32,
    kernel,
    maximum,
    row_dot,
    row_max,
    row_sum,
    usable,
)


@kernel
def exponentials(row: Any, top: Any, scale: Any, shift: Any, out: Any) -> Any:
    """out = exp(scale (row - top) - shift); returns its sum."""
    keys, total = row.shape[0], 0.0
    start = 0
    while start < keys:
        stop = block_end(start, keys, BLOCK)
        row_, out_ = row[start:stop], out[start:stop]
        part = ZERO
        for j in range(stop - start):
            e = exp(scale * (row_[j] - top) - shift)
            out_[j] = e
            part += e
        total += part
        start = stop
    return f32(total)


@kernel
def multiply(out: Any, factor: Any) -> None:
    for j in range(out.shape[0]):
        out[j] *= factor


@kernel
def forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    for r in range(start, stop):
        row, out, scale = logits[r], weights[r], params[r if params.shape[0] > 1 else 0, 0]
        top = row_max(row)
        if usable(top, out):
            multiply(out, ONE / exponentials(row, top, scale, ZERO, out))


@kernel
def centred(grad: Any, weights: Any, scale: Any, dot: Any, out: Any) -> None:
    for j in range(grad.shape[0]):
        out[j] = scale * weights[j] * (grad[j] - dot)


@kernel
def scale_gradient(grad: Any, row: Any, weights: Any, dot: Any, top: Any) -> Any:
    """sum_j w_j (g_j - dot) (l_j - top) over visible keys: the gradient to a common scale of the row."""
    keys, total = row.shape[0], 0.0
    start = 0
    while start < keys:
        stop = block_end(start, keys, LONG_BLOCK)
        row_, weights_, grad_ = row[start:stop], weights[start:stop], grad[start:stop]
        part = ZERO
        for j in range(stop - start):
            offset = row_[j] - top if row_[j] > NEG_INF else ZERO
            part += weights_[j] * (grad_[j] - dot) * offset
        total += part
        start = stop
    return f32(total)


@kernel
def backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        scale = params[r if params.shape[0] > 1 else 0, 0]
        dot = row_dot(weights[r], grad[r])
        centred(grad[r], weights[r], scale, dot, grad_logits[r])
        if grad_params.shape[0] > 0:
            top = maximum(row_max(logits[r]), f32(-3e38))  # a row without keys has no top
            grad_params[r, 0] = scale_gradient(grad[r], logits[r], weights[r], dot, top)


@kernel
def sink_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    for r in range(start, stop):
        q = r if params.shape[0] > 1 else 0
        row, out, scale, sink = logits[r], weights[r], params[q, 0], params[q, 1]
        top = row_max(row)
        if usable(top, out):
            above = sink - scale * top
            shift = maximum(above, ZERO)
            total = exponentials(row, top, scale, shift, out) + exp(above - shift)
            multiply(out, ONE / total)


@kernel
def sink_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    backward(grad, logits, weights, params, grad_logits, grad_params, start, stop)
    if grad_params.shape[0] == 0:
        return
    for r in range(start, stop):
        q = r if params.shape[0] > 1 else 0
        row, w, scale, sink = logits[r], weights[r], params[q, 0], params[q, 1]
        grad_params[r, 1] = ZERO
        top = row_max(row)
        if top == NEG_INF:
            continue
        dot = row_dot(w, grad[r])
        # The sink's weight from the largest one's: 1 - kept would cancel, and serves where that one underflows.
        above = sink - scale * top
        lost = row_max(w) * exp(above) if above < f32(40.0) else f32(1.0 - row_sum(w))
        grad_params[r, 0] += top * dot * lost
        grad_params[r, 1] = -lost * dot
