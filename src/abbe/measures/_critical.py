"""Critical N: the first set size at which the heads' distances no longer differ from those of random sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .._errors import AbbeError
from ._ks import ks_heights, ks_p_value


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
    heights, sizes = (x.tolist() for x in ks_heights(true, control))
    tests = [(h / m, ks_p_value(m, h)) if m else (math.nan, math.nan) for h, m in zip(heights, sizes, strict=True)]
    critical = {level: next((n for n, (_, p) in zip(grid, tests, strict=True) if p > level), None) for level in levels}
    return CriticalN(tuple(grid), tuple(d for d, _ in tests), tuple(p for _, p in tests), critical)
