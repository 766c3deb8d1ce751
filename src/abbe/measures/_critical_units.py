"""Critical N where there are many tests: one per query, or one per window, instead of one of the heads' means."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from .._errors import AbbeError
from ._ks import ks_heights, ks_p_value


def critical_of_units(true: Tensor, control: Tensor, grid: Sequence[int], level: float) -> Tensor:
    """Critical N where there are many tests, one per query or per window: the first N whose test does not reject.

    A small number means that only small sets differ from random ones, +inf that every test rejects.

    Args:
        true: the measure, (unit, N, sample).
        control: its control, of the same shape; samples that are NaN on either side are left out.
        grid: the sizes N, rising.
        level: of the tests, in (0, 1).

    Returns:
        (unit,), float64; NaN where a unit has no test at all, as an N without samples is no test.

    Examples:
        >>> heads = torch.linspace(0, 1, 40)
        >>> true, control = torch.stack([heads + 2, heads]), torch.stack([heads, heads + 0.01])
        >>> abbe.measures.critical_of_units(true[None], control[None], (5, 20), level=0.05).tolist()
        [20.0]
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


@lru_cache(maxsize=1 << 16)  # by size of the samples and level: asked again for every head and window
def least_height(size: int, level: float) -> int:
    """The least h = m D at which two samples of m = size differ at this level; m + 1 if they never do."""
    low, high = 1, size + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if ks_p_value(size, middle) <= level else (middle + 1, high)
    return low
