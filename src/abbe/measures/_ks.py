"""The two-sample Kolmogorov-Smirnov test of samples of equal size: many statistics at once, p-values from scipy."""

from __future__ import annotations

import warnings
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from .._errors import AbbeError


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
