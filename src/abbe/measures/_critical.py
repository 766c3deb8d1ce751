"""Critical N: the first set size at which the heads' distances no longer differ from those of random sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .._errors import AbbeError
from ._ks import ks_heights, ks_p_value


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
