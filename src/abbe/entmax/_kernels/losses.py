"""sum p (x - x_y) + H(p) of float32 rows, H the entropy of Tsallis at 1, 1.5, 2 and any other alpha.

loss(weights, logits, targets, alpha, losses, start, stop) for all four; infinite where the target is masked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._kernels.compiled import kernel
from ..._kernels.sums import BLOCK, LONG_BLOCK, Row, sum_over_keys
from ..._kernels.vector import NEG_INF, ONE, POS_INF, TINY, ZERO, exp, f32, log

_HALF, _FOUR_THIRDS = f32(0.5), f32(4 / 3)


@kernel
def finished(total: float, of_target: Any) -> Any:
    """Not below 0 by rounding; NaN stays NaN."""
    if of_target == NEG_INF:
        return POS_INF
    return ZERO if total < 0.0 else f32(total)


@sum_over_keys(LONG_BLOCK, rounded=False)
def gini_terms(j: int, weights: Row, row: Row, of_target: Any) -> Any:
    w, lead = weights[j], row[j] - of_target
    lead = ZERO if w == ZERO else lead  # a masked key is -inf, times a weight of 0
    return w * (lead + _HALF * (ONE - w))


@kernel
def gini(weights: Any, logits: Any, targets: Any, alpha: Any, losses: Any, start: int, stop: int) -> None:
    for r in range(start, stop):
        of_target = logits[r, targets[r]]
        total = gini_terms(weights[r], logits[r], of_target)
        losses[r] = finished(total, of_target)


@sum_over_keys(LONG_BLOCK, rounded=False)
def root_terms(j: int, weights: Row, row: Row, of_target: Any) -> Any:
    w, lead = weights[j], row[j] - of_target
    lead = ZERO if w == ZERO else lead
    return w * (lead + _FOUR_THIRDS * (ONE - np.sqrt(w)))


@kernel
def root(weights: Any, logits: Any, targets: Any, alpha: Any, losses: Any, start: int, stop: int) -> None:
    for r in range(start, stop):
        of_target = logits[r, targets[r]]
        total = root_terms(weights[r], logits[r], of_target)
        losses[r] = finished(total, of_target)


@sum_over_keys(BLOCK, rounded=False)
def shannon_terms(j: int, weights: Row, row: Row, of_target: Any) -> Any:
    w, lead = weights[j], row[j] - of_target
    lead = ZERO if w == ZERO else lead
    return w * (lead - log(ONE if w < TINY else w))


@kernel
def shannon(weights: Any, logits: Any, targets: Any, alpha: Any, losses: Any, start: int, stop: int) -> None:
    for r in range(start, stop):
        of_target = logits[r, targets[r]]
        total = shannon_terms(weights[r], logits[r], of_target)
        losses[r] = finished(total, of_target)


@sum_over_keys(BLOCK, rounded=False)
def power_terms(j: int, weights: Row, row: Row, of_target: Any, beta: Any, scale: Any) -> Any:
    w, lead = weights[j], row[j] - of_target
    lead = ZERO if w == ZERO else lead
    return w * (lead + scale * (ONE - exp(beta * log(ONE if w < TINY else w))))


@kernel
def power(weights: Any, logits: Any, targets: Any, alpha: Any, losses: Any, start: int, stop: int) -> None:
    beta = f32(alpha[0] - ONE)
    scale = f32(ONE / (alpha[0] * beta))
    for r in range(start, stop):
        of_target = logits[r, targets[r]]
        total = power_terms(weights[r], logits[r], of_target, beta, scale)
        losses[r] = finished(total, of_target)
