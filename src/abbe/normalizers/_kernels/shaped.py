"""Softmax followed by a pointwise map of its weights: clipped, elastic, self-adjusted, and kept top-k."""

from __future__ import annotations

from typing import Any

from ..._kernels.compiled import inlined, kernel
from ..._kernels.sums import BLOCK, LONG_BLOCK, Row, sum_over_keys
from ..._kernels.vector import NEG_INF, ONE, TINY, ZERO, f32, half_below, maximum, minimum, row_max, usable
from .rows import backward_rows, forward_rows
from .softmax import exponentials, multiply


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
    between = ZERO < w[j] < ONE
    return a[j] * (b[j] if between else ZERO)


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
    passed = grad[j] if weights[j] > ZERO else ZERO
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
