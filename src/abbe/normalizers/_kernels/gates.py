"""Maps that gate each key by itself: sigmoid, normalised ReLU^p, softpick, and stick-breaking."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._kernels.compiled import inlined, kernel
from ..._kernels.sums import BLOCK, Row, row_dot, row_sum, sum_over_keys
from ..._kernels.vector import NEG_INF, ONE, TINY, ZERO, exp, f32, log, maximum, row_max, sigmoid, usable
from .rows import backward_rows, forward_rows
from .shaped import visible_count
from .softmax import multiply


@kernel
def sigmoid_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    """params (bias,), NaN for -ln of the number of visible keys. Keys do not affect each other: no row is skipped."""
    for r in range(start, stop):
        row, out, bias = logits[r], weights[r], params[r if params.shape[0] > 1 else 0, 0]
        if bias != bias:
            bias = f32(-math.log(maximum(visible_count(row), ONE)))
        for j in range(row.shape[0]):
            out[j] = sigmoid(row[j] + bias)


@backward_rows()
def sigmoid_backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    for j in range(row.shape[0]):
        out[j] = grad[j] * weights[j] * (ONE - weights[j])


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


@forward_rows()
def relu_forward(row: Any, top: Any, params: Any, out: Any) -> None:
    """params (power, eps); in units of the largest logit, so that a large power of a large logit stays finite."""
    unit = maximum(top, f32(1e-30))  # without a logit above 0, any divisor will do
    total = raise_positive(row, unit, params[0], out) + relu_floor(params[1], unit, params[0])
    multiply(out, ONE / total if total > ZERO else ZERO)


@backward_rows()
def relu_backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    """The gradient is u (grad - w . grad), u = power relu(l)^(power - 1) / (sum relu(l)^power + eps)."""
    top, power = row_max(row), params[0]
    if not usable(top, out):
        return
    unit = maximum(top, f32(1e-30))
    total = raise_positive(row, unit, power, out) + relu_floor(params[1], unit, power)
    dot = row_dot(weights, grad)
    raise_positive(row, unit, power - ONE, out)
    factor = power / (total * unit) if top > ZERO else ZERO
    for j in range(row.shape[0]):
        out[j] *= factor * (grad[j] - dot)


@sum_over_keys(BLOCK, rounded=False, within=inlined)
def expm1_sizes(j: int, row: Row, top: Any, unit: Any, out: Row) -> Any:
    """out = e^l - 1 in units of e^top = 1/unit (0 where absent); returns the sum of absolute values."""
    x = expm1_scaled(row[j], top, unit) if row[j] > NEG_INF else ZERO
    out[j] = x
    return abs(x)


@kernel
def softpick_inverse(row: Any, top: Any, eps: Any, out: Any) -> Any:
    """out = e^l - 1 in units of e^max(top, 0) (0 where absent); returns 1/(sum |out| + eps), or 0 if the sum is 0."""
    shift = maximum(top, ZERO)
    unit = exp(-shift)
    total = f32(np.float64(eps * unit) + expm1_sizes(row, shift, unit, out))
    return ONE / total if total > ZERO else ZERO


@kernel
def expm1_scaled(x: Any, top: Any, unit: Any) -> Any:
    """(e^x - 1) e^-top, without cancellation for small x."""
    small = abs(x) < f32(0.3)  # there seven terms of the series are exact to float32
    y = x if small else ZERO
    series = f32(1 / 120) + y * (f32(1 / 720) + y * f32(1 / 5040))
    series = y * (ONE + y * (f32(1 / 2) + y * (f32(1 / 6) + y * (f32(1 / 24) + y * series))))
    return series * unit if small else exp(x - top) - unit


@forward_rows()
def softpick_forward(row: Any, top: Any, params: Any, out: Any) -> None:
    """params (eps,)."""
    inverse = softpick_inverse(row, top, params[0], out)
    for j in range(row.shape[0]):
        out[j] = maximum(out[j], ZERO) * inverse


@backward_rows()
def softpick_backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    top = row_max(row)
    if not usable(top, out):
        return
    inverse = softpick_inverse(row, top, params[0], out)
    dot = row_dot(weights, grad)
    shift = maximum(top, ZERO)
    for j in range(row.shape[0]):
        e = exp(row[j] - shift) * inverse
        sign = (grad[j] - dot) if row[j] > ZERO else (dot if row[j] < ZERO else ZERO)
        out[j] = e * sign


@kernel
def rests_scratch(keys: int) -> Any:
    return np.empty(keys, np.float32)


@kernel
def gates_and_rests(row: Any, gates: Any, rests: Any) -> None:
    """gates = sigmoid(row), rests = 1 - gates, both to full precision."""
    for j in range(row.shape[0]):
        gates[j] = sigmoid(row[j])
        rests[j] = sigmoid(-row[j])


@forward_rows(scratch=rests_scratch)
def stick_breaking_forward(row: Any, top: Any, params: Any, out: Any, rests: Any) -> None:
    gates_and_rests(row, out, rests)
    left = 1.0  # float64, as below: after thousands of keys it is a product of thousands of numbers
    # The stick is broken from the latest key on.
    for j in range(out.shape[0] - 1, -1, -1):
        out[j] *= f32(left)
        left *= rests[j]


@backward_rows(scratch=rests_scratch)
def stick_breaking_backward(
    grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any, rests: Any
) -> None:
    gates_and_rests(row, out, rests)
    before = 0.0
    for j in range(out.shape[0]):
        share = grad[j] * weights[j]
        out[j] = share * rests[j] - out[j] * f32(before)
        before += share
