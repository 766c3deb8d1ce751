"""Capacities of resampled windows: crossings interpolated between sizes, and intervals.

Resampling is paired: baseline and truncated losses come from the same windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ....measures import interval_ends, resampled_counts

_SLACK = 1e-9  # a crossing at a whole number is that number, whatever its last digit
Ends = tuple[float | None, float | None]


def relative_rises(baseline: Tensor, losses: Tensor) -> Tensor:
    """Of the mean loss: baseline (window,), losses (..., window) -> (...)."""
    return losses.mean(-1) / baseline.mean() - 1


def resampled_rises(baseline: Tensor, losses: Tensor, resamples: int, seed: int) -> Tensor:
    """The same for windows drawn with replacement: (window,), (size, window) -> (resample, size)."""
    counts = resampled_counts(len(baseline), resamples, seed)
    return counts @ losses.T / (counts @ baseline).unsqueeze(-1) - 1


def crossings(rises: Tensor, sizes: Sequence[int], allowed: float) -> Tensor:
    """Where the rise falls to the allowed one: rises (..., size), at ascending sizes -> (...).

    Linear in ln N between the largest size that fails (NaN fails) and the next one. The smallest size if none fails;
    infinite if the last one, all keys, fails.
    """
    places = torch.tensor(sizes, dtype=torch.float64)
    last = len(sizes) - 1
    after = torch.where(rises <= allowed, 0, torch.arange(1, len(sizes) + 1)).amax(-1)  # index after the last failure
    before, next_one = (after - 1).clamp(min=0), after.clamp(max=last)
    upper, lower = (rises.gather(-1, place.unsqueeze(-1)).squeeze(-1) for place in (before, next_one))
    # A NaN loss has no line to its neighbour: take the whole step to the next size.
    part = ((upper - allowed) / (upper - lower)).nan_to_num(1.0, 1.0, 1.0)
    between = torch.exp(torch.lerp(places[before].log(), places[next_one].log(), part))
    return torch.where(after == 0, places[0], torch.where(after > last, torch.inf, between))


def least_whole(crossing: Tensor) -> Tensor:
    return torch.ceil(crossing - _SLACK)


def interval(resampled: Tensor | None, level: float, windows: int) -> Ends:
    """Percentiles over resamples of this many windows; None without resamples, or for an end that is not finite."""
    if resampled is None:
        return None, None
    low, high = (float(end) for end in interval_ends(resampled.unsqueeze(-1), level, windows))
    return low if math.isfinite(low) else None, high if math.isfinite(high) else None


def whole_interval(resampled: Tensor | None, level: float, windows: int) -> Ends:
    """Percentiles of whole numbers, rounded outwards: there are no half keys."""
    low, high = interval(resampled, level, windows)
    return (
        None if low is None else float(math.floor(low + _SLACK)),
        None if high is None else float(math.ceil(high - _SLACK)),
    )
