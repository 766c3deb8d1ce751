"""Critical N: the first set size at which the heads' distances no longer differ from those of random sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from .._errors import AbbeError


@dataclass(frozen=True)
class CriticalN:
    """Statistic D and p-value for every N, and for each level the first N whose test does not reject (or None).

    That a test does not reject is no proof of equality: look at D and p.
    """

    grid: tuple[int, ...]
    statistic: tuple[float, ...]
    p_value: tuple[float, ...]
    critical: dict[float, int | None]


def critical_n(true: Tensor, control: Tensor, grid: Sequence[int], levels: Sequence[float] = (0.01, 0.05)) -> CriticalN:
    """Two-sample Kolmogorov-Smirnov tests of the head means of a measure against those of its control.

    true and control are (N, head); a head that has NaN at some N is left out there. A small critical N means that heads
    select few tokens in a way that random sets do not imitate. Source: arXiv 2508.17821, section 4 (for the distance).
    """
    if true.shape != control.shape or true.ndim != 2 or len(true) != len(grid):
        shapes = f"{tuple(true.shape)} and {tuple(control.shape)}"
        raise AbbeError(f"true and control must both be ({len(grid)} N, head), got {shapes}")
    tests = [_test_of_known(a, b) for a, b in zip(true, control, strict=True)]
    critical = {level: next((n for n, (_, p) in zip(grid, tests, strict=True) if p > level), None) for level in levels}
    return CriticalN(tuple(grid), tuple(d for d, _ in tests), tuple(p for _, p in tests), critical)


def _test_of_known(first: Tensor, second: Tensor) -> tuple[float, float]:
    """Of the heads that have both numbers; NaN if none has."""
    known = ~(first.isnan() | second.isnan())
    return ks_test(first[known], second[known]) if bool(known.any()) else (math.nan, math.nan)


def ks_test(first: Tensor, second: Tensor) -> tuple[float, float]:
    """Statistic D = h/m of two samples of equal size m, and its exact two-sided p-value.

    P(D >= h/m) = 2 sum_{k >= 1} (-1)^(k-1) C(2m, m - kh)/C(2m, m): of the C(2m, m) equally likely orders of the two
    samples, those whose path leaves the strip of half-width h, by reflection. Ties are counted as one step.
    """
    size = first.numel()
    if first.shape != second.shape or first.ndim != 1 or size == 0:
        raise AbbeError(f"samples must be of one size, got {tuple(first.shape)} and {tuple(second.shape)}")
    if bool(torch.isnan(first).any() or torch.isnan(second).any()):
        raise AbbeError("samples hold NaN")
    both = torch.cat([first, second])
    below = [torch.searchsorted(x.sort().values, both, right=True) for x in (first.contiguous(), second.contiguous())]
    height = int((below[0] - below[1]).abs().max())
    return height / size, _p_value(size, height)


def _p_value(size: int, height: int) -> float:
    if height == 0:
        return 1.0
    terms = ((1 if k % 2 else -1) * math.comb(2 * size, size - k * height) for k in range(1, size // height + 1))
    return min(1.0, float(Fraction(2 * sum(terms), math.comb(2 * size, size))))
