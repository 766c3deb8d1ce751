"""Softmax whose weights then pass through a pointwise map: clipped, elastic, self-adjusted, and kept top-k."""

from __future__ import annotations

from typing import Any

from ..._kernels.vector import (
    BLOCK,
    LONG_BLOCK,
    NEG_INF,
    ONE,
    TINY,
    ZERO,
    block_end,
    f32,
    kernel,
    maximum,
    minimum,
    row_max,
    usable,
)
from .softmax import exponentials, multiply


@kernel
def softmax_row(row: Any, out: Any) -> Any:
    """Plain softmax into out; False when the row has no keys or is not finite (then out says so)."""
    top = row_max(row)
    if not usable(top, out):
        return False
    multiply(out, ONE / exponentials(row, top, ONE, ZERO, out))
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


@kernel
def clipped_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    """params (zeta, gamma): clip((zeta - gamma) softmax + gamma, 0, 1)."""
    for r in range(start, stop):
        q = r if params.shape[0] > 1 else 0
        zeta, gamma, out = params[q, 0], params[q, 1], weights[r]
        if softmax_row(logits[r], out):
            for j in range(out.shape[0]):
                out[j] = minimum(maximum((zeta - gamma) * out[j] + gamma, ZERO), ONE)


@kernel
def dot_where_between(a: Any, b: Any, w: Any) -> Any:
    """sum of a b over the keys with 0 < w < 1."""
    keys, total = a.shape[0], 0.0
    start = 0
    while start < keys:
        stop = block_end(start, keys, LONG_BLOCK)
        a_, b_, w_ = a[start:stop], b[start:stop], w[start:stop]
        part = ZERO
        for j in range(stop - start):
            part += a_[j] * b_[j] if ZERO < w_[j] < ONE else ZERO
        total += part
        start = stop
    return f32(total)


@kernel
def clipped_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        q = r if params.shape[0] > 1 else 0
        stretch, g, w, out = params[q, 0] - params[q, 1], grad[r], weights[r], grad_logits[r]
        if softmax_row(logits[r], out):
            dot = dot_where_between(out, g, w)
            for j in range(g.shape[0]):
                passed = g[j] if ZERO < w[j] < ONE else ZERO
                out[j] = stretch * out[j] * (passed - dot)


@kernel
def elastic_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    """params (tau,): relu(softmax + tau / n), n the visible keys."""
    for r in range(start, stop):
        row, out = logits[r], weights[r]
        if softmax_row(row, out):
            offset = params[r if params.shape[0] > 1 else 0, 0] / visible_count(row)
            for j in range(out.shape[0]):
                out[j] = maximum(out[j] + offset, ZERO) if row[j] > NEG_INF else ZERO


@kernel
def kept_gradient(row: Any, g: Any, w: Any, out: Any) -> Any:
    """Gradient through softmax of the keys with w > 0; returns their summed gradient."""
    total = 0.0
    if softmax_row(row, out):
        dot, keys = 0.0, g.shape[0]
        start = 0
        while start < keys:
            stop = block_end(start, keys, LONG_BLOCK)
            g_, w_, out_ = g[start:stop], w[start:stop], out[start:stop]
            part_dot, part = ZERO, ZERO
            for j in range(stop - start):
                passed = g_[j] if w_[j] > ZERO else ZERO
                part_dot += out_[j] * passed
                part += passed
            dot += part_dot
            total += part
            start = stop
        mean = f32(dot)
        for j in range(keys):
            out[j] *= (g[j] if w[j] > ZERO else ZERO) - mean
    else:
        total = float(out[0])  # 0 of a row without keys, NaN of one that is not finite
    return f32(total)


@kernel
def kept_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        kept_gradient(logits[r], grad[r], weights[r], grad_logits[r])


@kernel
def elastic_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        total = kept_gradient(logits[r], grad[r], weights[r], grad_logits[r])
        if grad_params.shape[0] > 0:
            grad_params[r, 0] = total / maximum(visible_count(logits[r]), ONE)


@kernel
def low_and_high(row: Any) -> Any:
    """min(smallest visible logit, 0) and max(largest, 0)."""
    low, high = ZERO, ZERO
    for j in range(row.shape[0]):
        low = minimum(low, row[j] if row[j] > NEG_INF else ZERO)
        high = maximum(high, row[j])
    return low, high


@kernel
def ratio_of(x: Any, low: Any, inverse: Any) -> Any:
    return ((x if x > NEG_INF else ZERO) - low) * inverse if inverse > ZERO else ONE


@kernel
def self_adjusted_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    for r in range(start, stop):
        row, out = logits[r], weights[r]
        low, high = low_and_high(row)
        if softmax_row(row, out) and high - low > TINY:
            inverse = ONE / (high - low)
            for j in range(out.shape[0]):
                out[j] *= (row[j] - low) * inverse if row[j] > NEG_INF else ZERO


@kernel
def self_adjusted_sums(row: Any, g: Any, weights: Any, low: Any, high: Any, inverse: Any) -> Any:
    """The mean gradient of the row, and the gradients to each key that is the lowest or the highest."""
    keys, dot, at_low, at_high, rest = row.shape[0], 0.0, 0.0, 0.0, 0.0
    start = 0
    while start < keys:
        stop = block_end(start, keys, BLOCK)
        g_, weights_, row_ = g[start:stop], weights[start:stop], row[start:stop]
        part, part_rest, part_low, part_high = ZERO, ZERO, ZERO, ZERO
        for j in range(stop - start):
            share = g_[j] * weights_[j]
            ratio = ratio_of(row_[j], low, inverse)
            part += share * ratio
            part_rest += share * (ratio - ONE)
            part_low += ONE if row_[j] == low else ZERO
            part_high += ONE if row_[j] == high else ZERO
        dot += part
        rest += part_rest
        at_low += part_low
        at_high += part_high
        start = stop
    to_low = rest * inverse / at_low if low < ZERO else 0.0
    to_high = -dot * inverse / at_high if high > ZERO else 0.0
    return f32(dot), f32(to_low), f32(to_high)


@kernel
def self_adjusted_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        row, g, out = logits[r], grad[r], grad_logits[r]
        low, high = low_and_high(row)
        if not softmax_row(row, out):
            continue
        inverse = ONE / (high - low) if high - low > TINY else ZERO
        dot, to_low, to_high = self_adjusted_sums(row, g, out, low, high, inverse)
        for j in range(row.shape[0]):
            ratio = ratio_of(row[j], low, inverse)
            change = out[j] * (g[j] * ratio - dot + g[j] * inverse)
            change += to_low if row[j] == low else ZERO
            change += to_high if row[j] == high else ZERO
            out[j] = change
