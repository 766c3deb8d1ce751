"""Statistics over windows and heads: intervals by resampling, and critical N.

Critical N is the first set size at which the heads' distances no longer differ from those of random sets, by two-sample
Kolmogorov-Smirnov tests of samples of equal size: many statistics at once, p-values from scipy.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .._errors import AbbeError

__all__ = [
    "CriticalN",
    "bootstrap_interval",
    "critical_n",
    "critical_of_units",
    "enough_windows",
    "interval_ends",
    "ks_test",
    "resampled_counts",
    "resampled_means",
]

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
    """Quantiles by linear interpolation, up to the last number of each row."""
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


@dataclass(frozen=True)
class CriticalN:
    """Tests of selected against random sets, for every N. A test that does not reject is no proof of equality.

    Attributes:
        grid: the sizes N.
        statistic: Kolmogorov-Smirnov D for every N, in [0, 1]; high means that heads differ from chance.
        p_value: for every N; low means that the difference is not due to chance.
        critical: for each level the first N whose test does not reject, or None.
    """

    grid: tuple[int, ...]
    statistic: tuple[float, ...]
    p_value: tuple[float, ...]
    critical: dict[float, int | None]


def critical_n(true: Tensor, control: Tensor, grid: Sequence[int], levels: Sequence[float] = (0.01, 0.05)) -> CriticalN:
    """The set size from which selected sets cannot be distinguished from random ones, by a measure of all heads.

    Two-sample Kolmogorov-Smirnov tests of the head means of a measure against those of its control. A small critical N
    means that heads select few tokens in a way that random sets do not imitate, a large one many. Source: arXiv
    2508.17821, section 4 (for the distance).

    Args:
        true: the measure, (N, head); a head that has NaN at some N is left out there.
        control: its control, of the same shape.
        grid: the sizes N, rising.
        levels: of the tests, in (0, 1).

    Returns:
        Statistics and p-values for every N, and the critical N for each level.

    Examples:
        >>> heads = torch.linspace(0, 1, 40)
        >>> true, control = torch.stack([heads + 2, heads]), torch.stack([heads, heads + 0.01])
        >>> abbe.measures.critical_n(true, control, grid=(5, 20)).critical
        {0.01: 20, 0.05: 20}
    """
    if true.shape != control.shape or true.ndim != 2 or len(true) != len(grid):
        shapes = f"{tuple(true.shape)} and {tuple(control.shape)}"
        raise AbbeError(f"true and control must both be ({len(grid)} N, head), got {shapes}")
    heights, sizes = (x.tolist() for x in ks_heights(true, control))
    tests = [(h / m, ks_p_value(m, h)) if m else (math.nan, math.nan) for h, m in zip(heights, sizes, strict=True)]
    critical = {level: next((n for n, (_, p) in zip(grid, tests, strict=True) if p > level), None) for level in levels}
    return CriticalN(tuple(grid), tuple(d for d, _ in tests), tuple(p for _, p in tests), critical)


def critical_of_units(true: Tensor, control: Tensor, grid: Sequence[int], level: float) -> Tensor:
    """Critical N where there are many tests, one per query or per window: the first N whose test does not reject.

    A small number means that only small sets differ from random ones, +inf that every test rejects.

    Args:
        true: the measure, (unit, N, sample).
        control: its control, of the same shape; samples that are NaN on either side are left out.
        grid: the sizes N, rising.
        level: of the tests, in (0, 1).

    Returns:
        (unit,), float64; NaN for a unit without any test (an N without samples is none).

    Examples:
        >>> heads = torch.linspace(0, 1, 40)
        >>> true, control = torch.stack([heads + 2, heads]), torch.stack([heads, heads + 0.01])
        >>> abbe.measures.critical_of_units(true[None], control[None], (5, 20), level=0.05).tolist()
        [20.0]
    """
    if true.shape != control.shape or true.ndim != 3 or true.shape[1] != len(grid):
        shapes = f"{tuple(true.shape)} and {tuple(control.shape)}"
        raise AbbeError(f"true and control must both be (unit, {len(grid)} N, sample), got {shapes}")
    heights, samples = ks_heights(true, control)
    needed = torch.zeros_like(samples)
    for size in set(samples.flatten().tolist()):
        needed[samples == size] = least_height(size, level)
    passing = (heights < needed) & (samples > 0)
    first = torch.where(passing, torch.tensor(grid, dtype=torch.float64, device=heights.device), torch.inf).amin(-1)
    return torch.where((samples > 0).any(-1), first, torch.nan)


@lru_cache(maxsize=1 << 16)  # the same few sizes and levels come up for every head and window
def least_height(size: int, level: float) -> int:
    """The least h = m D at which two samples of m = size differ at this level; m + 1 if they never do."""
    low, high = 1, size + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if ks_p_value(size, middle) <= level else (middle + 1, high)
    return low


def ks_test(first: Tensor, second: Tensor) -> tuple[float, float]:
    """Two-sample Kolmogorov-Smirnov test of samples of equal size, with the exact two-sided p-value.

    Ties count as one step. A high statistic with a low p-value means that the samples differ.

    Args:
        first: (sample,).
        second: of the same size.

    Returns:
        Statistic D in [0, 1], and the p-value.

    Examples:
        >>> statistic, p = abbe.measures.ks_test(torch.arange(10.0), torch.arange(10.0) + 5)
        >>> statistic, round(p, 3)
        (0.5, 0.168)
    """
    size = first.numel()
    if first.shape != second.shape or first.ndim != 1 or size == 0:
        raise AbbeError(f"samples must have the same size, got {tuple(first.shape)} and {tuple(second.shape)}")
    if bool(torch.isnan(first).any() or torch.isnan(second).any()):
        raise AbbeError("samples hold NaN")
    height = int(ks_heights(first, second)[0])
    return height / size, ks_p_value(size, height)


def ks_heights(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """m D of two samples of size m along the last dimension, and m; pairs with NaN on either side are left out.

    Both are sorted together: a walk through them goes up at the first's values and down at the second's. Equal values
    are one step.
    """
    paired = ~(first.isnan() | second.isnan())
    # Pairs that are left out go to the end, with steps of 0.
    values = torch.cat([torch.where(paired, x, torch.inf) for x in (first, second)], -1)
    steps = torch.cat([paired.int(), -paired.int()], -1)
    ordered, order = values.sort(-1)
    walk = steps.gather(-1, order).cumsum(-1).abs()
    at_step = torch.ones_like(walk, dtype=torch.bool)
    at_step[..., :-1] = ordered[..., 1:] != ordered[..., :-1]
    return torch.where(at_step, walk, 0).amax(-1), paired.sum(-1)


@lru_cache(maxsize=1 << 16)  # resampling repeats the same few arguments thousands of times
def ks_p_value(size: int, height: int) -> float:
    """P(D >= height/size) for two samples of that size from one distribution, exactly."""
    from scipy.stats import ks_2samp  # slow to import

    if height <= 1:
        return 1.0  # without ties, D is at least 1/size
    steps = np.arange(size)
    with warnings.catch_warnings():
        # Where p is 1 up to rounding, scipy's exact sum may exceed 1: it warns, and falls back on the limit, 1.
        warnings.filterwarnings("ignore", "ks_2samp: Exact calculation unsuccessful", RuntimeWarning)
        # The p-value depends on D alone: any two samples with this D will do, such as shifted steps.
        return float(ks_2samp(steps, steps + height - 0.5, method="exact").pvalue)
