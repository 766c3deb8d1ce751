"""How many more prompts an alternative gets right than the baseline, on the same prompts.

Only prompts that exactly one of the two gets right are informative. Given their number, each is a gain with some
probability theta, and the exact interval of theta (Clopper and Pearson) becomes one of the gain. It excludes 0 exactly
if the exact two-sided test of McNemar rejects at the same level.
"""

from __future__ import annotations

from collections.abc import Sequence


def paired_gain(
    baseline: Sequence[bool], other: Sequence[bool], level: float = 0.95
) -> tuple[float, float | None, float | None]:
    """Accuracy of the other minus the baseline's, and its interval: none if both are right on the same prompts."""
    from scipy.stats import binomtest  # takes long to import

    gained = sum(new and not old for old, new in zip(baseline, other, strict=True))
    lost = sum(old and not new for old, new in zip(baseline, other, strict=True))
    changed, share = gained + lost, (gained + lost) / len(baseline)
    if not changed:
        return 0.0, None, None
    ends = binomtest(gained, changed).proportion_ci(level, "exact")
    low, high = (float(2 * theta - 1) * share for theta in (ends.low, ends.high))
    return (gained - lost) / len(baseline), low, high


def wilson(right: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of a share, by the score test: never empty, even if all or none are right."""
    from scipy.stats import binomtest  # takes long to import

    ends = binomtest(right, total).proportion_ci(level, "wilson")
    return float(ends.low), float(ends.high)
