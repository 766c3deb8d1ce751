"""Weights of sparsemax, entmax-1.5 and entmax: the threshold of a row by Newton, the last step in closed form.

Logits are relative to the largest of their row. The search is over a number in which the sum of the weights decreases:
the threshold tau of sparsemax and entmax-1.5, in [-1, 0], and for general alpha r = -ln of the largest weight, in
[0, ln n], in which the problem stays regular as alpha -> 1.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import LOWEST, load_tile, log1p, program_rows, row_max, row_params, row_sum, store_tile

ROUNDS = tl.constexpr(60)  # at most: a handful is typical, the limit keeps a loop over bad rows finite
SETTLED = tl.constexpr(6e-8)  # half an eps, of the sum of a row
SUMMED = tl.constexpr(3e-7)  # a sum this close to 1 is finished by the last step
STEP = tl.constexpr(1e-6)  # 8 eps: a shorter step in r is rounding, and the last step is exact to its square
EDGE = tl.constexpr(1e-30)  # a key with u at most this is off the support: 1/u must stay finite
LEAST_BETA = tl.constexpr(1e-7)  # 1/beta must stay finite; entmax is softmax to float32 there


@triton.jit
def gaps(x, top, factor, far):
    """factor (x - top), in this order: exact for logits of any size. An absent key is off every support."""
    return tl.where(x > float("-inf"), factor * tl.maximum(x - top, LOWEST), far)  # a factor of 0 times -inf is NaN


@triton.jit
def terms(z, at, beta, MAP: tl.constexpr):
    """The terms per key that the search sums. sparsemax: d, d > 0; entmax15: d, d^2; entmax: w and -dw/dr = w/u."""
    if MAP == "entmax":
        t = (beta * tl.exp(beta * at)) * z
        inside = 1.0 + t > EDGE
        t = tl.where(inside, t, 0.0)
        w = tl.where(inside, tl.exp(log1p(t) / beta - at), 0.0)
        return w, w / (1.0 + t)
    d = tl.maximum(z - at, 0.0)
    if MAP == "entmax15":
        return d, d * d
    return d, tl.where(d > 0.0, 1.0, 0.0)


@triton.jit
def step_to_root(first, second, MAP: tl.constexpr):
    """The excess of the sum of the weights over 1, and the Newton step that would remove it."""
    if MAP == "sparsemax":
        return first - 1.0, tl.div_rn(first - 1.0, second)
    if MAP == "entmax15":
        # On the norm of d, which is convex in tau: the steps come from the left and never pass the root.
        return second - 1.0, tl.div_rn(second - tl.sqrt_rn(second), first)
    # On the logarithm of the sum, which is linear in r as alpha -> 1.
    return first - 1.0, tl.div_rn(tl.log(first) * first, second)


@triton.jit
def exact_shift(first, second, count, MAP: tl.constexpr):
    """The shift of the threshold that makes the weights of the current support sum to 1, in closed form."""
    if MAP == "entmax15":
        # sum (d - x)^2 = 1, the root near 0 in the form that does not cancel
        excess = second - 1.0
        inside = tl.maximum(first * first - count * excess, 0.0)
        return tl.div_rn(excess, first + tl.sqrt_rn(inside))
    return tl.div_rn(first - 1.0, second)


@triton.jit
def shifted_weights(z, at, beta, shift, MAP: tl.constexpr):
    """Weights at a threshold in two parts: at + shift in one float32 would be off by half an eps per key."""
    if MAP == "entmax":
        w, slope = terms(z, at, beta, MAP)
        return tl.maximum(w - shift * slope, 0.0)
    d = tl.maximum((z - at) - shift, 0.0)
    return d * d if MAP == "entmax15" else d


@triton.jit
def sums_at(
    z, at, beta, logits, first, real, keys, top, factor, far,
    MAP: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Sums of both terms over each row, and with COUNT the size of its support (else 0, which saves a reduction)."""
    if WHOLE:
        a, b = terms(z, at, beta, MAP)
        return row_sum(a), row_sum(b), row_sum(tl.where(a > 0.0, 1.0, 0.0)) if COUNT else tl.zeros_like(at)
    a_lanes = tl.zeros_like(z)
    b_lanes = tl.zeros_like(z)
    support = tl.zeros_like(z)
    for start in range(0, keys, BLOCK):
        part = gaps(load_tile(logits, first, real, start, keys, float("-inf"), BLOCK), top, factor, far)
        a, b = terms(part, at, beta, MAP)
        a_lanes += a
        b_lanes += b
        if COUNT:
            support += tl.where(a > 0.0, 1.0, 0.0)
    return row_sum(a_lanes), row_sum(b_lanes), row_sum(support) if COUNT else tl.zeros_like(at)


@triton.jit
def row_facts(x):
    """Largest logit, number of visible keys, and whether one is NaN: a maximum may ignore NaN."""
    visible = tl.where(x > float("-inf"), 1.0, 0.0)
    return row_max(x), row_sum(visible), row_max(tl.where(x != x, 1.0, 0.0))


@triton.jit
def forward(
    logits, params, weights, rows, keys, params_step,
    MAP: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, first, real = program_rows(rows, keys, ROWS)
    scale, beta = row_params(params, row, real, params_step, MAP)
    beta = tl.maximum(beta, LEAST_BETA)
    x = load_tile(logits, first, real, 0, keys, float("-inf"), BLOCK)
    top, count, bad = row_facts(x)
    if not WHOLE:
        for start in range(BLOCK, keys, BLOCK):
            part = load_tile(logits, first, real, start, keys, float("-inf"), BLOCK)
            part_top, part_count, part_bad = row_facts(part)
            top, count, bad = tl.maximum(top, part_top), count + part_count, tl.maximum(bad, part_bad)
    sound = (top > float("-inf")) & (top < float("inf")) & (bad == 0.0)
    top = tl.where(sound, top, 0.0)
    # A fixed alpha multiplies beta into the logits once; general alpha has it in `terms`.
    factor = scale if MAP == "entmax" else beta * scale
    far = -2.0 / beta if MAP == "entmax" else tl.full(beta.shape, -2.0, tl.float32)
    z = gaps(x, top, factor, far)

    # At the left end the largest weight alone is 1, so the root is not below it. Rows that are not sound are skipped.
    low = tl.full(top.shape, 0.0 if MAP == "entmax" else -1.0, tl.float32)
    high = tl.log(tl.maximum(count, 1.0)) * (1.0 + STEP) + STEP if MAP == "entmax" else tl.zeros_like(top)
    at = low
    active = sound
    support_before = tl.zeros_like(top)
    step_before = high - low
    step_last = high - low
    turn = 0
    while (turn < ROUNDS) & (tl.max(active.to(tl.int32)) > 0):
        a, b, _ = sums_at(z, at, beta, logits, first, real, keys, top, factor, far, MAP, WHOLE, BLOCK, False)
        excess, step = step_to_root(a, b, MAP)
        low = tl.where(excess >= 0.0, at, low)
        high = tl.where(excess <= 0.0, at, high)
        trusted = (at + step >= low) & (at + step <= high)
        if MAP == "entmax":  # ln of the sum is neither convex nor concave: Newton may circle
            trusted &= tl.abs(step) <= 0.5 * step_before
        following = tl.where(trusted, at + step, 0.5 * (low + high))
        if MAP == "entmax":
            settled = tl.abs(following - at) <= (1.0 + at) * STEP
            step_before = step_last
            step_last = tl.abs(following - at)
        else:
            if MAP == "sparsemax":
                # On an unchanged support the last step was exact.
                settled = (b == support_before) | (tl.abs(excess) <= SUMMED)
                support_before = tl.where(trusted, b, 0.0)
            else:
                # Convergence is quadratic: after this step the sum is off by at most keys step^2.
                settled = keys * step * step <= SETTLED
            # The last step may leave the bracket, once rounding has closed it.
            following = tl.where(settled, at + step, following)
        at = tl.where(active, following, at)
        active = active & (settled == 0)
        turn += 1

    a, b, support = sums_at(z, at, beta, logits, first, real, keys, top, factor, far, MAP, WHOLE, BLOCK, True)
    shift = exact_shift(a, b, support, MAP)
    # Zeros for a row without keys, NaN throughout a row with NaN or +inf.
    hollow = tl.where((count == 0.0) & (bad == 0.0), 0.0, float("nan"))
    if WHOLE:
        w = tl.where(sound, shifted_weights(z, at, beta, shift, MAP), hollow)
        store_tile(weights, first, real, 0, keys, w, BLOCK)
    else:
        for start in range(0, keys, BLOCK):
            part = gaps(load_tile(logits, first, real, start, keys, float("-inf"), BLOCK), top, factor, far)
            w = tl.where(sound, shifted_weights(part, at, beta, shift, MAP), hollow)
            store_tile(weights, first, real, start, keys, w, BLOCK)
