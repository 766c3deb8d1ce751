"""Critical N where there are many tests: one a query, or one a window, instead of one of the heads' means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from .._errors import AbbeError


def critical_of_units(true: Tensor, control: Tensor, grid: Sequence[int], level: float) -> Tensor:
    """The first N whose test does not reject, for every unit: (unit, N, sample) of both -> (unit,), float64.

    Samples that are NaN on either side are left out. An N without samples is no test; +inf where every test rejects,
    NaN where a unit has no test at all.
    """
    if true.shape != control.shape or true.ndim != 3 or true.shape[1] != len(grid):
        shapes = f"{tuple(true.shape)} and {tuple(control.shape)}"
        raise AbbeError(f"true and control must both be (unit, {len(grid)} N, sample), got {shapes}")
    heights, sizes = ks_heights(true, control)
    needed = torch.zeros_like(sizes)
    for size in set(sizes.flatten().tolist()):
        needed[sizes == size] = least_height(size, level)
    sizes_of_n = torch.tensor(grid, dtype=torch.float64, device=heights.device)
    passing = (heights < needed) & (sizes > 0)
    first = torch.where(passing, sizes_of_n, torch.inf).amin(-1)
    return torch.where((sizes > 0).any(-1), first, torch.nan)


def ks_heights(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """m D of two samples of m along the last dimension, and m; those with NaN on either side are left out.

    Both are sorted together; walking through them, first goes one up and second one down. Equal values are one step.
    """
    there = ~(first.isnan() | second.isnan())
    values = torch.cat([torch.where(there, x, torch.inf) for x in (first, second)], -1)
    steps = torch.cat([there.int(), -there.int()], -1)
    ordered, order = values.sort(-1)
    walk = steps.gather(-1, order).cumsum(-1).abs()
    at_step = torch.ones_like(walk, dtype=torch.bool)
    at_step[..., :-1] = ordered[..., 1:] != ordered[..., :-1]
    return torch.where(at_step, walk, 0).amax(-1), there.sum(-1)


@lru_cache(maxsize=1 << 16)
def least_height(size: int, level: float) -> int:
    """The least h = m D at which two samples of m = size are told apart at this level; m + 1 if they never are."""
    low, high = 1, size + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if p_value(size, middle) <= level else (middle + 1, high)
    return low


def p_value(size: int, height: int) -> float:
    """As in `ks_test`, from logarithms: C(2m, m - kh)/C(2m, m) without numbers of thousands of digits."""
    whole, total = 2 * math.lgamma(size + 1), 0.0
    for k in range(1, size // height + 1):
        term = math.exp(whole - math.lgamma(size - k * height + 1) - math.lgamma(size + k * height + 1))
        total += term if k % 2 else -term
        if term < 1e-15:  # they fall fast
            break
    return min(1.0, 2 * total)
