"""Intervals by resampling windows."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .._errors import AbbeError

_CELLS_AT_ONCE = 1 << 22  # resampled numbers held in memory


def bootstrap_interval(
    values: Tensor,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    statistic: Literal["mean", "max"] = "mean",
) -> tuple[Tensor, Tensor]:
    """Interval of a mean (or maximum) over windows, by resampling them: an expanded percentile interval.

    Windows are drawn with replacement, the same draws for all cells; NaN windows are left out. A cell with fewer than
    two windows has no interval: NaN. A wide interval means that more windows are needed. Deterministic for a seed.

    Args:
        values: (window, ...).
        level: share of intervals that contain the true number, in (0, 1).
        resamples: >= 1.
        seed: of the draws.
        statistic: "mean" or "max".

    Returns:
        Low and high end, each (...), float64.

    Examples:
        >>> low, high = abbe.measures.bootstrap_interval(torch.arange(12.0))
        >>> bool(low < 5.5 < high)
        True
    """
    _check(values, level, resamples)
    if statistic not in ("mean", "max"):
        raise AbbeError(f"statistic must be 'mean' or 'max', got {statistic!r}")
    flat = values.detach().double().reshape(len(values), -1)
    # Counts instead of drawn values: all means are then one matrix product.
    counts = resampled_counts(len(flat), resamples, seed).to(flat.device)
    step = max(1, _CELLS_AT_ONCE // resamples)
    ends = [
        interval_ends(_resampled(part, counts, statistic), level, _windows(part)) for part in torch.split(flat, step, 1)
    ]
    few = _windows(flat) < 2
    low, high = (
        torch.where(few, torch.nan, torch.cat(side)).view(values.shape[1:]) for side in zip(*ends, strict=True)
    )
    return low, high


def resampled_means(values: Tensor, resamples: int = 1000, seed: int = 0) -> Tensor:
    """Means over windows drawn with replacement. NaN windows are left out.

    Args:
        values: (window, ...).
        resamples: >= 1.
        seed: of the draws.

    Returns:
        (resample, ...), float64; their spread is that of the mean.

    Examples:
        >>> abbe.measures.resampled_means(torch.rand(12, 3), resamples=100).shape
        torch.Size([100, 3])
    """
    _check(values, 0.5, resamples)
    flat = values.detach().double().reshape(len(values), -1)
    means = _resampled(flat, resampled_counts(len(flat), resamples, seed).to(flat.device), "mean")
    return means.view(resamples, *values.shape[1:])


def resampled_counts(windows: int, resamples: int, seed: int) -> Tensor:
    """How often each window is drawn when all are resampled with replacement.

    Args:
        windows: >= 1.
        resamples: >= 1.
        seed: of the draws.

    Returns:
        (resample, window), float64; each row sums to the number of windows.

    Examples:
        >>> abbe.measures.resampled_counts(windows=5, resamples=3, seed=0).sum(1).tolist()
        [5.0, 5.0, 5.0]
    """
    drawn = torch.randint(windows, (resamples, windows), generator=torch.Generator().manual_seed(seed))
    return torch.zeros(resamples, windows, dtype=torch.float64).scatter_add_(1, drawn, torch.ones(drawn.shape).double())


def _resampled(flat: Tensor, counts: Tensor, statistic: str) -> Tensor:
    """(resample, cell); NaN where a resample holds no window of a cell."""
    measured = ~torch.isnan(flat)
    if statistic == "mean":
        return counts @ torch.where(measured, flat, 0.0) / (counts @ measured.double())
    largest = torch.full((len(counts), flat.shape[1]), -torch.inf, dtype=flat.dtype, device=flat.device)
    # Window by window: (resample, window, cell) at once would take many times the memory.
    for window, row in enumerate(torch.where(measured, flat, -torch.inf)):
        drawn = counts[:, window : window + 1] > 0
        largest = torch.where(drawn, torch.maximum(largest, row), largest)
    return torch.where(torch.isinf(largest) & (largest < 0), torch.nan, largest)


def interval_ends(resampled: Tensor, level: float, windows: Tensor | int) -> tuple[Tensor, Tensor]:
    """The two ends of an interval from resampled numbers: quantiles over the resamples that exist.

    A wide interval means that more windows are needed, a narrow one that they agree.

    Args:
        resampled: (resample, cell).
        level: share of intervals that contain the true number, in (0, 1).
        windows: how many windows the numbers come from; one number or one per cell. Few make wide intervals.

    Returns:
        Low and high end, each (cell,).

    Examples:
        >>> means = abbe.measures.resampled_means(torch.arange(12.0).unsqueeze(1))
        >>> low, high = abbe.measures.interval_ends(means, 0.95, 12)
        >>> bool(low < 5.5 < high)
        True
    """
    # numpy sorts several times faster here than torch; both put NaN last.
    ordered = torch.from_numpy(np.sort(resampled.T.contiguous().cpu().numpy(), -1)).to(resampled.device)
    last = ((~torch.isnan(ordered)).sum(-1, keepdim=True) - 1).clamp(min=0)
    counts = torch.as_tensor(windows).expand(len(ordered)).tolist()
    tails = torch.tensor([expanded_tail(n, level) for n in counts], dtype=torch.float64, device=ordered.device)
    low, high = (_quantile(ordered, last, q.unsqueeze(-1)) for q in (tails, 1 - tails))
    return low, high


@lru_cache
def expanded_tail(windows: int, level: float) -> float:
    """Share of the resamples beyond each end of an interval from n windows.

    Plain percentiles are too narrow: n windows scatter around their own mean by a factor sqrt((n-1)/n) too little, and
    the normal quantile z stands in for Student's t with n - 1 degrees of freedom. The percentile of t * sqrt(n/(n-1))
    instead of z corrects both (Hesterberg 2015). No percentile lies beyond the windows themselves: with fewer than six
    the interval is still too narrow. Fewer than two have no interval; the tail is then 0.
    """
    from scipy.stats import norm, t  # slow to import

    if windows < 2:
        return 0.0
    _, student = t.interval(level, windows - 1)
    return float(norm.sf(student * math.sqrt(windows / (windows - 1))))


def enough_windows(level: float) -> int:
    """The least number of windows from which an interval can contain the true number as often as its level says.

    No resample lies beyond the n windows, and all n lie on one side of the truth with a probability of at least
    2^(1-n): 1 - 2^(1-n) has to reach the level.

    Args:
        level: of the interval, in (0, 1).

    Returns:
        Number of windows, >= 2.

    Examples:
        >>> abbe.measures.enough_windows(0.95), abbe.measures.enough_windows(0.99)
        (6, 8)
    """
    return next(n for n in itertools.count(2) if 1 - 2.0 ** (1 - n) >= level)


def _windows(flat: Tensor) -> Tensor:
    """How many windows measured each cell."""
    return (~torch.isnan(flat)).sum(0)


def _quantile(ordered: Tensor, last: Tensor, q: Tensor) -> Tensor:
    """By linear interpolation, up to the last number of each row."""
    place = q * last.double()
    below = place.floor().long()
    left, right = ordered.gather(-1, below), ordered.gather(-1, torch.minimum(below + 1, last))
    return torch.lerp(left, right, place - below).squeeze(-1)


def _check(values: Tensor, level: float, resamples: int) -> None:
    if values.ndim == 0 or len(values) == 0:
        raise AbbeError(f"values must be (window, ...) with at least one window, got shape {tuple(values.shape)}")
    if not 0 < level < 1:
        raise AbbeError(f"level must lie strictly between 0 and 1, got {level}")
    if resamples < 1:
        raise AbbeError(f"resamples must be a whole number >= 1, got {resamples}")
