"""Estimates of changes, paired: from the same windows by resampling them, or exactly from the same prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...measures import interval_ends, resampled_means
from ...results import Estimate


def with_nan(values: Sequence[float | None]) -> list[float]:
    """JSON stores numbers that are not finite as null: back to NaN."""
    return [math.nan if value is None else value for value in values]


def window_numbers(values: Sequence[float | None]) -> Tensor:
    """(window,), float64; NaN for null."""
    return torch.tensor(with_nan(values), dtype=torch.float64)


def mean(values: Sequence[float | None]) -> float:
    """NaN if there are no values, or if one of them is null."""
    return sum(with_nan(values)) / len(values) if values else math.nan


def resampled_estimate(value: Tensor, resampled: Tensor, windows: int, level: float) -> Estimate:
    """A value with the quantiles of its resamples; a single window, or a value that is not finite, has no interval."""
    if windows < 2 or not math.isfinite(value):
        return Estimate(float(value))
    low, high = interval_ends(resampled[:, None], level, windows)
    return Estimate(float(value), float(low), float(high))


def mean_estimate(values: Tensor, level: float, resamples: int, seed: int) -> Estimate:
    """The mean over all windows: NaN if one of them is."""
    return resampled_estimate(values.mean(), resampled_means(values, resamples, seed), len(values), level)


def paired_gain(baseline: Sequence[bool], other: Sequence[bool], level: float = 0.95) -> Estimate:
    """How many more prompts an alternative gets right than the baseline, on the same prompts, as a share of all.

    Only prompts that exactly one of the two gets right are informative. Given their number, each is a gain with some
    probability theta, and the exact interval of theta (Clopper and Pearson) becomes one of the gain. It excludes 0
    exactly if the exact two-sided test of McNemar rejects at the same level. There is none if both are right on the
    same prompts.
    """
    from scipy.stats import binomtest  # takes long to import

    differ = [new for old, new in zip(baseline, other, strict=True) if old != new]
    gained, changed = sum(differ), len(differ)
    if not changed:
        return Estimate(0.0)
    ends, share = binomtest(gained, changed).proportion_ci(level, "exact"), changed / len(baseline)
    low, high = (float(2 * theta - 1) * share for theta in (ends.low, ends.high))
    return Estimate((2 * gained - changed) / len(baseline), low, high)


def paired_difference(baseline: Sequence[bool], other: Sequence[bool], level: float = 0.95) -> Estimate:
    """Difference of two shares on the same items, with an interval that also says how large it may be.

    `paired_gain` takes the number of items that differ as given: where few do, its interval is too narrow for the size
    of the difference, and where none does there is none. Tango's score interval (1998) counts them as random, but is
    asymptotic. Both together: it excludes 0 only if the exact test of McNemar rejects, and never has width 0.
    """
    exact, items = paired_gain(baseline, other, level), len(baseline)
    pairs = list(zip(baseline, other, strict=True))
    gained, lost = pairs.count((False, True)), pairs.count((True, False))
    low, high = -_most(lost, gained, items, level), _most(gained, lost, items, level)
    return Estimate(exact.value, min(low, exact.value if exact.low is None else exact.low),
                    max(high, exact.value if exact.high is None else exact.high))  # fmt: skip


def _most(gained: int, lost: int, items: int, level: float) -> float:
    """The upper end of Tango's interval of (gained - lost) / items: the largest difference that is not rejected."""
    from scipy.optimize import brentq  # takes long to import
    from scipy.stats import norm

    z = norm.ppf((1 + level) / 2)

    def excess(difference: float) -> float:
        """By how much the score statistic exceeds z, with the variance of the most likely shares that have it."""
        slope = (2 * items - gained + lost) * difference - gained - lost
        root = math.sqrt(slope**2 + 8 * items * lost * difference * (1 - difference))
        share = (root - slope) / (4 * items)
        spread = items * (2 * share + difference * (1 - difference))
        return items * difference - (gained - lost) - float(z) * math.sqrt(max(spread, 0.0))

    value = (gained - lost) / items
    # From just above: at the value itself the excess is 0 where no item differs.
    return 1.0 if value == 1 else float(brentq(excess, value + 1e-9 * (1 - value), 1.0))


def share_right(right: int, total: int, level: float = 0.95) -> Estimate:
    """A share with Wilson's interval, by the score test: never empty, even if all or none are right."""
    from scipy.stats import binomtest  # takes long to import

    ends = binomtest(right, total).proportion_ci(level, "wilson")
    return Estimate(right / total, float(ends.low), float(ends.high))
