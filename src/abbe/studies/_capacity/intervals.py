"""Capacities of resampled windows: crossings read off between the sizes tried, intervals, and growth with the length.

Windows are drawn in pairs: a resample takes the own and the truncated losses of the same windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...measures import interval_ends, resampled_counts

_SLACK = 1e-9  # a crossing at a whole number is that number, whatever the last digit says
Ends = tuple[float | None, float | None]


def resampled_rises(own: Tensor, truncated: Tensor, resamples: int, seed: int) -> Tensor:
    """Relative rises of windows drawn with replacement: own (window,), truncated (size, window) -> (resample, size)."""
    counts = resampled_counts(len(own), resamples, seed)
    return counts @ truncated.T / (counts @ own).unsqueeze(-1) - 1


def crossings(rises: Tensor, sizes: Sequence[int], untouched: int, allowed: float) -> Tensor:
    """Where the rise falls to what is allowed: rises (..., size), at sizes in rising order -> (...).

    Straight lines over ln N between the largest size that fails and the next one; a model that keeps all keys has no
    rise. The smallest size if none fails.
    """
    places = torch.tensor([*sizes, untouched], dtype=torch.float64)
    whole = torch.cat([rises, torch.zeros_like(rises[..., :1])], -1)
    number = torch.arange(1, len(places) + 1)
    after = torch.where(whole <= allowed, 0, number).amax(-1)  # place of the next size: 0 if none fails
    before = (after - 1).clamp(min=0)
    upper, lower = whole.gather(-1, before.unsqueeze(-1)), whole.gather(-1, after.unsqueeze(-1))
    part = ((upper - allowed) / (upper - lower)).squeeze(-1).nan_to_num(1.0, 1.0, 1.0)
    found = torch.exp(torch.lerp(places[before].log(), places[after].log(), part))
    return torch.where(after == 0, places[0], found)


def least_whole(crossing: Tensor) -> Tensor:
    """The least whole number of keys."""
    return torch.ceil(crossing - _SLACK)


def interval(resampled: Tensor | None, level: float, windows: int) -> Ends:
    """Percentiles over the resamples of so many windows; none without resamples."""
    if resampled is None:
        return None, None
    low, high = interval_ends(resampled.unsqueeze(-1), level, windows)
    return float(low), float(high)


def whole_interval(resampled: Tensor | None, level: float, windows: int) -> Ends:
    """Percentiles of whole numbers, as the nearest whole numbers outside: no half a key is claimed."""
    low, high = interval(resampled, level, windows)
    if low is None or high is None:
        return None, None
    return float(math.floor(low + _SLACK)), float(math.ceil(high - _SLACK))


def growth_exponent(capacities: Tensor, lengths: Sequence[int]) -> Tensor:
    """Least squares of ln N* on ln L: (..., length) -> (...)."""
    x = torch.tensor(lengths, dtype=torch.float64).log()
    x = x - x.mean()
    return (capacities.double().log() @ x) / (x @ x)
