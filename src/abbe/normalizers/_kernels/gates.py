"""Maps that gate each key by itself: sigmoid, normalised ReLU^p, softpick, and stick-breaking."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._vector import NEG_INF, ONE, POS_INF, ZERO, exp, f32, kernel, log, maximum, row_dot, row_max, sigmoid, usable
from .shaped import visible_count


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
def power(x: Any, p: Any) -> Any:
    """x**p for x >= 0, fast for small whole p."""
    if p == ONE:
        return x
    if p == f32(2.0):
        return x * x
    return exp(p * log(x)) if x > f32(1e-37) else ZERO


@kernel
def relu_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    """params (power, eps)."""
    for r in range(start, stop):
        q = r if params.shape[0] > 1 else 0
        row, out, p, eps = logits[r], weights[r], params[q, 0], params[q, 1]
        top = row_max(row)
        if not usable(top, out):
            continue
        # In units of the largest logit, so that a large power of a large logit stays finite.
        unit = maximum(top, f32(1e-30))
        floor = f32(float(eps) / math.pow(unit, p)) if eps > ZERO else ZERO
        total = ZERO
        for j in range(row.shape[0]):
            x = power(maximum(row[j], ZERO) / unit, p)
            out[j] = x
            total += x
        total += floor
        inverse = ONE / total if total > ZERO else ZERO
        for j in range(row.shape[0]):
            out[j] *= inverse


@kernel
def relu_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    """d w_i / d l_j = p w_i / l_i on the diagonal, less w_i p w_j / l_j; l^(p-1) / total where l is tiny."""
    for r in range(start, stop):
        q = r if params.shape[0] > 1 else 0
        row, w, g, out, p, eps = logits[r], weights[r], grad[r], grad_logits[r], params[q, 0], params[q, 1]
        top = row_max(row)
        if not usable(top, out) or top <= ZERO:
            if top <= ZERO:
                out[:] = ZERO
            continue
        floor = f32(float(eps) / math.pow(top, p)) if eps > ZERO else ZERO
        dot = row_dot(w, g)
        total = floor
        for j in range(row.shape[0]):
            x = maximum(row[j], ZERO) / top
            total += power(x, p)
        factor = p / (total * top)
        for j in range(row.shape[0]):
            x = maximum(row[j], ZERO) / top
            slope = power(x, p - ONE) if row[j] > ZERO else ZERO
            out[j] = factor * slope * (g[j] - dot)


@kernel
def softpick_sums(row: Any, eps: Any, out: Any) -> Any:
    """out = e^l - 1 in units of e^max(top, 0) (0 where absent); returns the sum of its sizes plus eps."""
    top = maximum(row_max(row), ZERO)
    unit = exp(-top)
    total = eps * unit
    for j in range(row.shape[0]):
        l = row[j]
        x = expm1_scaled(l, top, unit)
        x = x if l > NEG_INF else ZERO
        out[j] = x
        total += abs(x)
    return total


@kernel
def expm1_scaled(l: Any, top: Any, unit: Any) -> Any:
    """(e^l - 1) e^-top, without cancellation for small l."""
    small = abs(l) < f32(0.3)
    y = l if small else ZERO
    series = f32(1 / 120) + y * (f32(1 / 720) + y * f32(1 / 5040))
    series = y * (ONE + y * (f32(1 / 2) + y * (f32(1 / 6) + y * (f32(1 / 24) + y * series))))
    return series * unit if small else exp(l - top) - unit


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
def stick_breaking_forward(logits: Any, params: Any, weights: Any, start: int, stop: int) -> None:
    for r in range(start, stop):
        row, out = logits[r], weights[r]
        for j in range(row.shape[0]):
            out[j] = sigmoid(row[j])
        left = ONE
        for j in range(row.shape[0] - 1, -1, -1):
            gate = out[j]
            out[j] = gate * left
            left *= exact_rest(row[j], gate)


@kernel
def exact_rest(l: Any, gate: Any) -> Any:
    """1 - gate; for a large logit the small rest is taken from the logit."""
    return ONE - gate if l < f32(1.0) else (exp(-l) * gate if l < POS_INF else ZERO)


@kernel
def stick_breaking_backward(
    grad: Any, logits: Any, weights: Any, params: Any, grad_logits: Any, grad_params: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        row, w, g, out = logits[r], weights[r], grad[r], grad_logits[r]
        for j in range(row.shape[0]):
            out[j] = sigmoid(row[j])
        before = ZERO
        for j in range(row.shape[0]):
            share = g[j] * w[j]
            gate = out[j]
            out[j] = share * exact_rest(row[j], gate) - gate * before
            before += share
