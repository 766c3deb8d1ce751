"""How many more prompts an alternative gets right than the baseline, on the same prompts.

Only prompts that one of the two gets right and the other wrong say anything. Given how many those are, each is a gain
with some probability theta, and the exact interval of theta (Clopper and Pearson) becomes one of the gain. It leaves
out 0 exactly where the exact two-sided test of McNemar rejects at the same level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

_STEPS = 60  # of a bisection: as fine as a float64 near 1/2


def paired_gain(
    baseline: Sequence[bool], other: Sequence[bool], level: float = 0.95
) -> tuple[float, float | None, float | None]:
    """Accuracy of the other less the baseline's, and its interval: none where both are right on the same prompts."""
    gained = sum(new and not old for old, new in zip(baseline, other, strict=True))
    lost = sum(old and not new for old, new in zip(baseline, other, strict=True))
    changed, share = gained + lost, (gained + lost) / len(baseline)
    if not changed:
        return 0.0, None, None
    low, high = ((2 * theta - 1) * share for theta in clopper_pearson(gained, changed, level))
    return (gained - lost) / len(baseline), low, high


@lru_cache(maxsize=4096)
def clopper_pearson(right: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Exact interval of a share: the values that neither tail of the binomial distribution rejects."""
    tail = (1 - level) / 2
    low = 0.0 if right == 0 else _largest(lambda theta: _at_least(right, total, theta) <= tail)
    high = 1.0 if right == total else 1 - _largest(lambda theta: _at_least(total - right, total, theta) <= tail)
    return low, high


def _largest(holds: Callable[[float], bool]) -> float:
    """The largest theta of (0, 1) up to which it holds, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _at_least(right: int, total: int, theta: float) -> float:
    """P(X >= right) for X of a binomial distribution; sums of logs, since the coefficients outgrow a float."""
    yes, no = math.log(theta), math.log1p(-theta)
    whole = math.lgamma(total + 1)
    return math.fsum(
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(total - k + 1) + k * yes + (total - k) * no)
        for k in range(right, total + 1)
    )
