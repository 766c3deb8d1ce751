"""Maps that gate each key by itself: sigmoid, normalised ReLU^p, softpick, and stick-breaking."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._kernels.vector import (
    BLOCK,
    NEG_INF,
    ONE,
    TINY,
    ZERO,
    block_end,
    exp,
    f32,
    kernel,
    log,
    maximum,
    row_dot,
    row_max,
    row_sum,
    sigmoid,
    usable,
)
from .shaped import visible_count
from .softmax import multiply


@kernel
def sigmoid_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    """params (bias,), NaN for minus ln of the visible keys."""
    for r in range(start, stop):
        row, out, bias = logits[r], weights[r], params[r if params.shape[0] > 1 else 0, 0]
        if bias != bias:
            bias = f32(-math.log(maximum(visible_count(row), ONE)))
        for j in range(row.shape[0]):
            out[j] = sigmoid(row[j] + bias)


@kernel
def sigmoid_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        w, g, out = weights[r], grad[r], grad_logits[r]
        for j in range(w.shape[0]):
            out[j] = g[j] * w[j] * (ONE - w[j])


@kernel
def raise_positive(row: Any, unit: Any, power: Any, out: Any) -> Any:
    """out = relu(row / unit)^power; returns its sum. Powers 0, 1 and 2 need no logarithm."""
    inverse = ONE / unit
    if power == ZERO:
        for j in range(row.shape[0]):
            out[j] = ONE if row[j] > ZERO else ZERO
    elif power == ONE:
        for j in range(row.shape[0]):
            out[j] = maximum(row[j] * inverse, ZERO)
    elif power == f32(2.0):
        for j in range(row.shape[0]):
            x = maximum(row[j] * inverse, ZERO)
            out[j] = x * x
    else:
        for j in range(row.shape[0]):
            x = maximum(row[j] * inverse, ZERO)
            out[j] = exp(power * log(x if x > TINY else ONE)) if x > TINY else ZERO
    return f32(row_sum(out))


@kernel
def relu_floor(eps: Any, unit: Any, power: Any) -> Any:
    """eps in units of unit^power."""
    return f32(np.float64(eps) / math.pow(unit, power)) if eps > ZERO else ZERO


@kernel
def relu_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    """params (power, eps); in units of the largest logit, so that a large power of a large logit stays finite."""
    for r in range(start, stop):
        q = r if params.shape[0] > 1 else 0
        row, out, power, eps = logits[r], weights[r], params[q, 0], params[q, 1]
        top = row_max(row)
        if usable(top, out):
            unit = maximum(top, f32(1e-30))
            total = raise_positive(row, unit, power, out) + relu_floor(eps, unit, power)
            multiply(out, ONE / total if total > ZERO else ZERO)


@kernel
def relu_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    """The gradient is u (grad - w . grad), u = power relu(l)^(power - 1) / (sum relu(l)^power + eps)."""
    for r in range(start, stop):
        q = r if params.shape[0] > 1 else 0
        row, g, out, power, eps = logits[r], grad[r], grad_logits[r], params[q, 0], params[q, 1]
        top = row_max(row)
        if not usable(top, out):
            continue
        unit = maximum(top, f32(1e-30))
        total = raise_positive(row, unit, power, out) + relu_floor(eps, unit, power)
        dot = row_dot(weights[r], g)
        raise_positive(row, unit, power - ONE, out)
        factor = power / (total * unit) if top > ZERO else ZERO
        for j in range(row.shape[0]):
            out[j] *= factor * (g[j] - dot)


@kernel
def softpick_sums(row: Any, eps: Any, out: Any) -> Any:
    """out = e^l - 1 in units of e^max(top, 0) (0 where absent); returns the sum of its sizes plus eps."""
    top = maximum(row_max(row), ZERO)
    unit = exp(-top)
    keys, total = row.shape[0], np.float64(eps * unit)  # numba's `float` would leave it in float32
    start = 0
    while start < keys:
        stop = block_end(start, keys, BLOCK)
        row_, out_ = row[start:stop], out[start:stop]
        part = ZERO
        for j in range(stop - start):
            x = expm1_scaled(row_[j], top, unit) if row_[j] > NEG_INF else ZERO
            out_[j] = x
            part += abs(x)
        total += part
        start = stop
    return f32(total)


@kernel
def expm1_scaled(x: Any, top: Any, unit: Any) -> Any:
    """(e^x - 1) e^-top, without cancellation for small x."""
    small = abs(x) < f32(0.3)
    y = x if small else ZERO
    series = f32(1 / 120) + y * (f32(1 / 720) + y * f32(1 / 5040))
    series = y * (ONE + y * (f32(1 / 2) + y * (f32(1 / 6) + y * (f32(1 / 24) + y * series))))
    return series * unit if small else exp(x - top) - unit


@kernel
def softpick_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    """params (eps,)."""
    for r in range(start, stop):
        row, out = logits[r], weights[r]
        if usable(row_max(row), out):
            total = softpick_sums(row, params[r if params.shape[0] > 1 else 0, 0], out)
            inverse = ONE / total if total > ZERO else ZERO
            for j in range(row.shape[0]):
                out[j] = maximum(out[j], ZERO) * inverse


@kernel
def softpick_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        row, w, g, out = logits[r], weights[r], grad[r], grad_logits[r]
        top = row_max(row)
        if not usable(top, out):
            continue
        total = softpick_sums(row, params[r if params.shape[0] > 1 else 0, 0], out)
        inverse = ONE / total if total > ZERO else ZERO
        dot = row_dot(w, g)
        shift = maximum(top, ZERO)
        for j in range(row.shape[0]):
            e = exp(row[j] - shift) * inverse
            sign = (g[j] - dot) if row[j] > ZERO else (dot if row[j] < ZERO else ZERO)
            out[j] = e * sign


@kernel
def gates_and_rests(row: Any, gates: Any, rests: Any) -> None:
    """gates = sigmoid(row), rests = 1 - gates, both to full precision."""
    for j in range(row.shape[0]):
        gates[j] = sigmoid(row[j])
        rests[j] = sigmoid(-row[j])


@kernel
def stick_breaking_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    rests = np.empty(logits.shape[1], np.float32)
    for r in range(start, stop):
        out = weights[r]
        if not usable(row_max(logits[r]), out):
            continue
        gates_and_rests(logits[r], out, rests)
        left = 1.0  # float64, as below: what is left after thousands of keys is a product of thousands of numbers
        for j in range(out.shape[0] - 1, -1, -1):
            out[j] *= f32(left)
            left *= rests[j]


@kernel
def stick_breaking_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    rests = np.empty(logits.shape[1], np.float32)
    for r in range(start, stop):
        w, g, out = weights[r], grad[r], grad_logits[r]
        gates_and_rests(logits[r], out, rests)
        before = 0.0
        for j in range(out.shape[0]):
            share = g[j] * w[j]
            out[j] = share * rests[j] - out[j] * f32(before)
            before += share
