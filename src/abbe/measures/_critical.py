"""Critical N: the first set size at which the heads' distances no longer differ from those of random sets.

By two-sample Kolmogorov-Smirnov tests of samples of equal size: many statistics at once, p-values from scipy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from .._errors import AbbeError


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
