"""sum p (x - x_y) + H(p) of float32 rows, H the Tsallis entropy at 1, 1.5, 2 and any other alpha.

All four are loss(weights, logits, targets, alpha, losses, start, stop); infinite where the target is masked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._kernels.compiled import around, kernel
from ..._kernels.sums import BLOCK, LONG_BLOCK, Row, sum_over_keys
from ..._kernels.vector import NEG_INF, ONE, POS_INF, TINY, ZERO, exp, f32, log

_HALF, _FOUR_THIRDS = f32(0.5), f32(4 / 3)
_SOURCE = """
def {name}(weights, logits, targets, alpha, losses, start, stop):
    for r in range(start, stop):
        of_target = logits[r, targets[r]]
        losses[r] = finished(of_row(weights[r], logits[r], of_target, alpha[0]), of_target)
"""


@kernel
def finished(total: float, of_target: Any) -> Any:
    """Not below 0 by rounding; NaN stays NaN."""
    if of_target == NEG_INF:
        return POS_INF
    return ZERO if total < 0.0 else f32(total)


def over_targets(of_row: Any) -> Any:
    """Make the kernel from the sum of one row."""
    return kernel(around(of_row, "of_row", _SOURCE.format(name=of_row.__name__), {"finished": finished}))


@sum_over_keys(LONG_BLOCK, rounded=False)
def gini_terms(j: int, weights: Row, row: Row, of_target: Any) -> Any:
    w, lead = weights[j], row[j] - of_target
    lead = ZERO if w == ZERO else lead  # a masked key would be -inf times a weight of 0
    return w * (lead + _HALF * (ONE - w))


@sum_over_keys(LONG_BLOCK, rounded=False)
def root_terms(j: int, weights: Row, row: Row, of_target: Any) -> Any:
    w, lead = weights[j], row[j] - of_target
    lead = ZERO if w == ZERO else lead
    return w * (lead + _FOUR_THIRDS * (ONE - np.sqrt(w)))


@sum_over_keys(BLOCK, rounded=False)
def shannon_terms(j: int, weights: Row, row: Row, of_target: Any) -> Any:
    w, lead = weights[j], row[j] - of_target
    lead = ZERO if w == ZERO else lead
    return w * (lead - log(ONE if w < TINY else w))


@sum_over_keys(BLOCK, rounded=False)
def power_terms(j: int, weights: Row, row: Row, of_target: Any, beta: Any, scale: Any) -> Any:
    w, lead = weights[j], row[j] - of_target
    lead = ZERO if w == ZERO else lead
    return w * (lead + scale * (ONE - exp(beta * log(ONE if w < TINY else w))))


@over_targets
def gini(weights: Any, row: Any, of_target: Any, alpha: Any) -> Any:
    return gini_terms(weights, row, of_target)


@over_targets
def root(weights: Any, row: Any, of_target: Any, alpha: Any) -> Any:
    return root_terms(weights, row, of_target)


@over_targets
def shannon(weights: Any, row: Any, of_target: Any, alpha: Any) -> Any:
    return shannon_terms(weights, row, of_target)


@over_targets
def power(weights: Any, row: Any, of_target: Any, alpha: Any) -> Any:
    beta = f32(alpha - ONE)
    return power_terms(weights, row, of_target, beta, f32(ONE / (alpha * beta)))
