"""Gradients of sparsemax, entmax-1.5 and entmax, from the weights alone: J = scale (diag u - u u^T / sum u).

u = w^(2 - alpha) on the support. The logits are read only if the gradient to the scale is needed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import LOWEST, load_tile, program_rows, row_max, row_params, row_sum, store_tile

TINY = tl.constexpr(1e-37)  # smaller weights count as 0 where their logarithm or power is needed


@triton.jit
def support_weights(w, beta, MAP: tl.constexpr):
    """u per key: 0 off the support, NaN where the row is NaN."""
    if MAP == "sparsemax":
        return tl.where(w > 0.0, 1.0, w)
    if MAP == "entmax15":
        return tl.sqrt_rn(w)
    inside = w > TINY
    return tl.where(inside, tl.exp((1.0 - beta) * tl.log(tl.where(inside, w, 1.0))), w * 0.0)


@triton.jit
def log_weight_slope(d, beta, s):
    """d ln(w) / d beta at a fixed largest weight e^s, for w = e^(s + d): -d^2 E2(beta d) - s d E1(beta d).

    E1(x) = (1 - e^-x)/x and E2(x) = (e^-x - 1 + x)/x^2 have no pole at 0, which keeps alpha -> 1 accurate.
    """
    x = beta * d
    near = x > -0.3  # there the series are exact to float32, and the closed forms cancel
    y = tl.where(near, x, 0.0)
    e2_near = 1 / 2 - y * (1 / 6 - y * (1 / 24 - y * (1 / 120 - y * (1 / 720))))
    e1_near = 1.0 - y * e2_near  # E1 = 1 - x E2
    far = tl.where(near, -1.0, x)
    e2 = tl.where(near, e2_near, (tl.exp(-far) - 1.0 + far) / (far * far))
    e1 = tl.where(near, e1_near, (1.0 - tl.exp(-far)) / far)
    return -d * (d * e2 + s * e1)


@triton.jit
def alpha_terms(w, centred, beta, s):
    """w slope (grad - mean): the mean under u removes the change of the largest weight."""
    inside = w > TINY
    d = tl.where(inside, tl.log(tl.where(inside, w, 1.0)) - s, 0.0)
    return tl.where(inside, w * log_weight_slope(d, beta, s) * centred, w * 0.0)


@triton.jit
def scale_terms(u, centred, x, top):
    """u (grad - mean) (logit - top): the sum does not depend on the top, which keeps the terms small."""
    return u * centred * tl.where(x > float("-inf"), tl.maximum(x - top, LOWEST), 0.0)  # 0 times -inf is NaN


@triton.jit
def backward(
    grad, logits, weights, params, grad_logits, grad_params, rows, keys,
    params_step, MAP: tl.constexpr, WITH_PARAMS: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, first, real = program_rows(rows, keys, ROWS)
    scale, beta = row_params(params, row, real, params_step, MAP)
    w = load_tile(weights, first, real, 0, keys, 0.0, BLOCK)
    g = load_tile(grad, first, real, 0, keys, 0.0, BLOCK)
    u = support_weights(w, beta, MAP)
    peak = row_max(w)
    if WITH_PARAMS:
        x = load_tile(logits, first, real, 0, keys, float("-inf"), BLOCK)
        top = row_max(x)
    total, dot = u, u * g
    if not WHOLE:
        for start in range(BLOCK, keys, BLOCK):
            w = load_tile(weights, first, real, start, keys, 0.0, BLOCK)
            u = support_weights(w, beta, MAP)
            total += u
            dot += u * load_tile(grad, first, real, start, keys, 0.0, BLOCK)
            peak = tl.maximum(peak, row_max(w))
            if WITH_PARAMS:
                top = tl.maximum(top, row_max(load_tile(logits, first, real, start, keys, float("-inf"), BLOCK)))
    total, dot = row_sum(total), row_sum(dot)
    # A row without keys has no u: its gradient is 0.
    mean = tl.where(total > 0.0, tl.div_rn(dot, tl.where(total > 0.0, total, 1.0)), 0.0)
    s = tl.log(tl.maximum(peak, TINY))
    if WHOLE:
        store_tile(grad_logits, first, real, 0, keys, scale * u * (g - mean), BLOCK)
        if WITH_PARAMS:
            of_scale = row_sum(scale_terms(u, g - mean, x, top))
            if MAP == "entmax":
                of_beta = row_sum(alpha_terms(w, g - mean, beta, s))
    else:
        scale_lanes, beta_lanes = tl.zeros_like(u), tl.zeros_like(u)
        for start in range(0, keys, BLOCK):
            w = load_tile(weights, first, real, start, keys, 0.0, BLOCK)
            u = support_weights(w, beta, MAP)
            centred = load_tile(grad, first, real, start, keys, 0.0, BLOCK) - mean
            store_tile(grad_logits, first, real, start, keys, scale * u * centred, BLOCK)
            if WITH_PARAMS:
                x = load_tile(logits, first, real, start, keys, float("-inf"), BLOCK)
                scale_lanes += scale_terms(u, centred, x, top)
                if MAP == "entmax":
                    beta_lanes += alpha_terms(w, centred, beta, s)
        of_scale, of_beta = row_sum(scale_lanes), row_sum(beta_lanes)
    if WITH_PARAMS:
        if MAP == "entmax":
            tl.store(grad_params + 2 * row, of_scale, mask=real)
            tl.store(grad_params + 2 * row + 1, of_beta, mask=real)
        else:
            tl.store(grad_params + row, of_scale, mask=real)
