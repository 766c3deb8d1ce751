"""Kernels of gates (sigmoid, ReLU^p, softpick, stick-breaking), and of shaped and adaptive softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._kernels.compiled import inlined, kernel
from ..._kernels.sums import BLOCK, LONG_BLOCK, Row, row_dot, row_sum, sum_over_keys
from ..._kernels.vector import (
    LARGEST,
    NEG_INF,
    ONE,
    TINY,
    ZERO,
    exp,
    f32,
    half_below,
    log,
    maximum,
    minimum,
    row_max,
    sigmoid,
    usable,
)
from .rows import backward_rows, forward_rows
from .softmax import exponentials, multiply, scale_gradient


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
    unit = maximum(top, f32(1e-30))  # as in forward
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


@inlined
def softmax_below(row: Any, top: Any, out: Any) -> None:
    """Plain softmax into out, given the largest logit."""
    multiply(out, ONE / exponentials(row, top, ONE, ZERO, out))


@kernel
def softmax_row(row: Any, out: Any) -> Any:
    """Plain softmax into out; False if the row has no keys or is not finite (out is then zeros or NaN)."""
    top = row_max(row)
    if not usable(top, out):
        return False
    softmax_below(row, top, out)
    return True


@kernel
def visible_count(row: Any) -> Any:
    count = ZERO
    for j in range(row.shape[0]):
        count += ZERO if row[j] == NEG_INF else ONE
    return count


@kernel
def count_forward(logits: Any, counts: Any, start: int, stop: int) -> None:
    for r in range(start, stop):
        counts[r, 0] = visible_count(logits[r])


@forward_rows()
def clipped_forward(row: Any, top: Any, params: Any, out: Any) -> None:
    """params (zeta, gamma): clip((zeta - gamma) softmax + gamma, 0, 1)."""
    zeta, gamma = params[0], params[1]
    softmax_below(row, top, out)
    for j in range(out.shape[0]):
        out[j] = minimum(maximum((zeta - gamma) * out[j] + gamma, ZERO), ONE)


@sum_over_keys(LONG_BLOCK)
def dot_where_between(j: int, a: Row, b: Row, w: Row) -> Any:
    """sum of a b over the keys with 0 < w < 1."""
    between, x = ZERO < w[j] < ONE, b[j]
    return a[j] * (x if between else ZERO)


@backward_rows()
def clipped_backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    stretch = params[0] - params[1]
    if softmax_row(row, out):
        dot = dot_where_between(out, grad, weights)
        for j in range(grad.shape[0]):
            passed = grad[j] if ZERO < weights[j] < ONE else ZERO
            out[j] = stretch * out[j] * (passed - dot)


@forward_rows()
def elastic_forward(row: Any, top: Any, params: Any, out: Any) -> None:
    """params (tau,): relu(softmax + tau / n), n the visible keys."""
    softmax_below(row, top, out)
    offset = params[0] / visible_count(row)
    for j in range(out.shape[0]):
        out[j] = maximum(out[j] + offset, ZERO) if row[j] > NEG_INF else ZERO


@sum_over_keys(LONG_BLOCK, sums=2, within=inlined)
def kept_sums(j: int, grad: Row, weights: Row, p: Row) -> Any:
    """sums of p grad and of grad over the keys with a weight."""
    g = grad[j]
    passed = g if weights[j] > ZERO else ZERO
    return p[j] * passed, passed


@kernel
def kept_gradient(row: Any, grad: Any, weights: Any, out: Any) -> Any:
    """Gradient through softmax of the keys with w > 0; returns their summed gradient."""
    if not softmax_row(row, out):
        return out[0]  # 0 for a row without keys, NaN for one that is not finite
    mean, total = kept_sums(grad, weights, out)
    for j in range(row.shape[0]):
        out[j] *= (grad[j] if weights[j] > ZERO else ZERO) - mean
    return total


@backward_rows()
def kept_backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    kept_gradient(row, grad, weights, out)


@backward_rows()
def elastic_backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    total = kept_gradient(row, grad, weights, out)
    if of_params.shape[0] > 0:
        # The sum of a row without keys is 0, and must not become 0/0.
        of_params[0, 0] = total / maximum(visible_count(row), ONE)


@kernel
def low_and_high(row: Any) -> Any:
    """min(smallest visible logit, 0) and max(largest, 0)."""
    low, high = ZERO, ZERO
    for j in range(row.shape[0]):
        low = minimum(low, row[j] if row[j] > NEG_INF else ZERO)
        high = maximum(high, row[j])
    return low, high


@kernel
def ratio_of(x: Any, low: Any, high: Any, inverse: Any) -> Any:
    """Exactly 1 for the highest key: its rounding error, times 1/(high - low), would give a single key a gradient."""
    below = x < high and inverse > ZERO
    return half_below(x if x > NEG_INF else ZERO, low) * inverse if below else ONE


@forward_rows()
def self_adjusted_forward(row: Any, top: Any, params: Any, out: Any) -> None:
    low, high = low_and_high(row)
    softmax_below(row, top, out)
    if high - low > TINY:  # a row of zeros, where the ratio is 0/0, stays plain softmax
        inverse = ONE / half_below(high, low)
        for j in range(out.shape[0]):
            out[j] *= half_below(row[j], low) * inverse if row[j] > NEG_INF else ZERO


@sum_over_keys(BLOCK, sums=4, rounded=False, within=inlined)
def key_sums(j: int, row: Row, grad: Row, weights: Row, low: Any, high: Any, inverse: Any) -> Any:
    """sums of g w ratio and g w (ratio - 1), and how many keys are the lowest and the highest."""
    share, ratio = grad[j] * weights[j], ratio_of(row[j], low, high, inverse)
    return share * ratio, share * (ratio - ONE), ONE if row[j] == low else ZERO, ONE if row[j] == high else ZERO


@kernel
def self_adjusted_sums(row: Any, grad: Any, weights: Any, low: Any, high: Any, inverse: Any) -> Any:
    """The mean gradient of the row, and the gradients to each lowest and each highest key, times high - low."""
    dot, rest, at_low, at_high = key_sums(row, grad, weights, low, high, inverse)
    to_low = rest / at_low if low < ZERO else 0.0
    to_high = -dot / at_high if high > ZERO else 0.0
    return f32(dot), f32(to_low), f32(to_high)


@backward_rows()
def self_adjusted_backward(grad: Any, row: Any, weights: Any, params: Any, out: Any, of_params: Any) -> None:
    low, high = low_and_high(row)
    if not softmax_row(row, out):
        return
    inverse = ONE / half_below(high, low) if high - low > TINY else ZERO
    dot, to_low, to_high = self_adjusted_sums(row, grad, out, low, high, inverse)
    for j in range(row.shape[0]):
        ratio = ratio_of(row[j], low, high, inverse)
        moved = out[j] * grad[j] + (to_low if row[j] == low else ZERO) + (to_high if row[j] == high else ZERO)
        # Summed before the factor 1/(high - low), which would amplify each rounding error: a single key gets 0.
        out[j] = out[j] * (grad[j] * ratio - dot) + moved * (f32(0.5) * inverse)


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
