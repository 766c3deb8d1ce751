"""Capacities of resampled windows: crossings read off between the sizes tried, and intervals.

Windows are drawn in pairs: a resample takes the baseline and the truncated losses of the same windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ....measures import interval_ends, resampled_counts

_SLACK = 1e-9  # a crossing at a whole number is that number, whatever the last digit says
Ends = tuple[float | None, float | None]


def relative_rises(baseline: Tensor, losses: Tensor) -> Tensor:
    """Of the mean loss: baseline (window,), losses (..., window) -> (...)."""
    return losses.mean(-1) / baseline.mean() - 1


def resampled_rises(baseline: Tensor, losses: Tensor, resamples: int, seed: int) -> Tensor:
    """The same of windows drawn with replacement: (window,), (size, window) -> (resample, size)."""
    counts = resampled_counts(len(baseline), resamples, seed)
    return counts @ losses.T / (counts @ baseline).unsqueeze(-1) - 1


def crossings(rises: Tensor, sizes: Sequence[int], allowed: float) -> Tensor:
    """Where the rise falls to what is allowed: rises (..., size), at sizes in rising order -> (...).

    Straight lines over ln N between the largest size that fails (NaN does) and the next one. The smallest size if none
    fails; infinite if the last one, all keys, fails.
    """
    places = torch.tensor(sizes, dtype=torch.float64)
    last = len(sizes) - 1
    number = torch.arange(1, len(sizes) + 1)
    after = torch.where(rises <= allowed, 0, number).amax(-1)  # place of the size after the last that fails
    before, next_one = (after - 1).clamp(min=0), after.clamp(max=last)
    upper, lower = (rises.gather(-1, place.unsqueeze(-1)).squeeze(-1) for place in (before, next_one))
    # A loss that is no number has no line to its neighbour: the whole step to the next size is taken.
    part = ((upper - allowed) / (upper - lower)).nan_to_num(1.0, 1.0, 1.0)
    between = torch.exp(torch.lerp(places[before].log(), places[next_one].log(), part))
    return torch.where(after == 0, places[0], torch.where(after > last, torch.inf, between))


def least_whole(crossing: Tensor) -> Tensor:
    """The least whole number of keys."""
    return torch.ceil(crossing - _SLACK)


def interval(resampled: Tensor | None, level: float, windows: int) -> Ends:
    """Percentiles over the resamples of so many windows; None without resamples, and for an end that is not finite."""
    if resampled is None:
        return None, None
    low, high = (float(end) for end in interval_ends(resampled.unsqueeze(-1), level, windows))
    return low if math.isfinite(low) else None, high if math.isfinite(high) else None


def whole_interval(resampled: Tensor | None, level: float, windows: int) -> Ends:
    """Percentiles of whole numbers, as the nearest whole numbers outside: no half a key is claimed."""
    low, high = interval(resampled, level, windows)
    return (
        None if low is None else float(math.floor(low + _SLACK)),
        None if high is None else float(math.ceil(high - _SLACK)),
    )
