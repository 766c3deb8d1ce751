"""sum p (x - x_y) + H(p) of float32 rows, H the Tsallis entropy at 1, 1.5, 2 and any other alpha.

All four are loss(weights, logits, targets, alpha, losses, start, stop); infinite where the target is masked. Each is
made from the term of one key; beta = alpha - 1, scale = 1/(alpha beta).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._kernels.compiled import from_source, inlined, kernel
from .._kernels.sums import BLOCK, LONG_BLOCK, Row, sum_over_keys
from .._kernels.vector import NEG_INF, ONE, POS_INF, TINY, ZERO, exp, f32, log

_HALF, _FOUR_THIRDS = f32(0.5), f32(4 / 3)
_SOURCE = """
def {name}(weights, logits, targets, alpha, losses, start, stop):
    beta = f32(alpha[0] - ONE)
    scale = f32(ONE / (alpha[0] * beta))
    for r in range(start, stop):
        of_target = logits[r, targets[r]]
        losses[r] = finished(total(weights[r], logits[r], of_target, beta, scale), of_target)
"""


@kernel
def finished(total: float, of_target: Any) -> Any:
    """Not below 0 by rounding; NaN stays NaN."""
    if of_target == NEG_INF:
        return POS_INF
    return ZERO if total < 0.0 else f32(total)


def loss(block: int) -> Callable[[Any], Any]:
    """Make the kernel from the term of one key."""

    def loss_of(term: Any) -> Any:
        scope = {"total": sum_over_keys(block, rounded=False)(term), "finished": finished, "f32": f32, "ONE": ONE}
        scope["__name__"] = __name__
        return kernel(from_source(_SOURCE.format(name=term.__name__), term.__name__, __file__, scope))

    return loss_of


@inlined
def lead(w: Any, logit: Any, of_target: Any) -> Any:
    """Over the target; a masked key would be -inf times a weight of 0."""
    return ZERO if w == ZERO else logit - of_target


@loss(LONG_BLOCK)
def gini(j: int, weights: Row, row: Row, of_target: Any, beta: Any, scale: Any) -> Any:
    w = weights[j]
    return w * (lead(w, row[j], of_target) + _HALF * (ONE - w))


@loss(LONG_BLOCK)
def root(j: int, weights: Row, row: Row, of_target: Any, beta: Any, scale: Any) -> Any:
    w = weights[j]
    return w * (lead(w, row[j], of_target) + _FOUR_THIRDS * (ONE - np.sqrt(w)))


@loss(BLOCK)
def shannon(j: int, weights: Row, row: Row, of_target: Any, beta: Any, scale: Any) -> Any:
    w = weights[j]
    return w * (lead(w, row[j], of_target) - log(ONE if w < TINY else w))


@loss(BLOCK)
def power(j: int, weights: Row, row: Row, of_target: Any, beta: Any, scale: Any) -> Any:
    w = weights[j]
    return w * (lead(w, row[j], of_target) + scale * (ONE - exp(beta * log(ONE if w < TINY else w))))
