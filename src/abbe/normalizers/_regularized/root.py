"""The log of the largest weight of a row: what it makes of the other weights, and the search for it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._dispatch import inside_transform
from .._entmax import log1p_ratio

Sums = Callable[[Tensor], tuple[Tensor, Tensor]]
_MOST = 200  # a bisection to float64 every other step would need 120
_UNROLLED = 16  # 8 were the most seen on adversarial rows


def powers_below(z: Tensor, beta: Tensor, s: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """w = [e^(beta s) + beta z]_+^(1/beta) for z <= 0 and any beta > -1, and 1 + beta z e^(-beta s) on its support."""
    most = 0.9 * torch.log(torch.tensor(torch.finfo(z.dtype).max)).item()
    unit = torch.exp((-beta * s).clamp(max=most))  # beyond, only keys equal to the top are left, where z = 0
    x = z * unit
    inside = visible & (1 + beta * x > 0)
    x = torch.where(inside, x, 0.0)
    return torch.where(inside, torch.exp(s + x * log1p_ratio(beta * x)), 0.0), 1 + beta * x


def newton_step(s: Tensor, total: Tensor, slope: Tensor, some: Tensor) -> Tensor:
    """One step towards log total = 0; a row without keys stays where it is."""
    total, slope = torch.where(some, total, 1.0), torch.where(some, slope, 1.0)
    return s - total.log() * total / slope


def log_peak(sums: Sums, low: Tensor, some: Tensor) -> Tensor:
    """s in [low, 0] at which total = 1, given total and its slope as functions of s, total growing with s.

    Newton on log total. Where a step leaves the bracket or is not half as long as the last but one, the bracket is
    halved instead: log total is neither convex nor concave.
    """
    s, high = torch.zeros_like(low), torch.zeros_like(low)
    low = low - 8 * torch.finfo(low.dtype).eps * (1 - low)  # the root of equal logits lies on the edge
    step = before = high - low
    unrolled = torch.compiler.is_compiling() or inside_transform()
    for _ in range(_UNROLLED if unrolled else _MOST):
        total, slope = sums(s)
        newton = newton_step(s, total, slope, some)
        low = torch.where(some & (total <= 1), s, low)
        high = torch.where(some & (total >= 1), s, high)
        trusted = (newton >= low) & (newton <= high) & ((newton - s).abs() <= before / 2)
        following = torch.where(trusted | ~some, newton, (low + high) / 2)
        before, step = step, (following - s).abs()
        s = following
        if not unrolled and not bool((step > 2 * torch.finfo(s.dtype).eps * (1 - s)).any()):
            break
    return s
