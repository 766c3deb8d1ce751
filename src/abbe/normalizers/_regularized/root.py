"""Searches, one answer per row: the log of the largest weight, and the lowest key that belongs to a set."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .._dispatch import inside_transform
from .._entmax import log1p_ratio
from .._rows import NEG_INF

Sums = Callable[..., tuple[Tensor, Tensor]]
_MOST = 200  # bisecting to float64 in every other step would take 120
_UNROLLED = 16  # in a traced graph; adversarial rows took 8 at most


def powers_below(z: Tensor, beta: Tensor, s: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """w = [e^(beta s) + beta z]_+^(1/beta) for z <= 0 and any beta > -1, and 1 + beta z e^(-beta s) on its support."""
    most = 0.9 * math.log(torch.finfo(z.dtype).max)
    unit = torch.exp((-beta * s).clamp(max=most))  # beyond, only keys equal to the top are left, where z = 0
    x = z * unit
    inside = visible & (1 + beta * x > 0)
    x = torch.where(inside, x, 0.0)
    return torch.where(inside, torch.exp(s + x * log1p_ratio(beta * x)), 0.0), 1 + beta * x


def _newton_step(s: Tensor, total: Tensor, slope: Tensor, some: Tensor) -> Tensor:
    """One step towards log total = 0; a row without keys stays where it is."""
    total, slope = torch.where(some, total, 1.0), torch.where(some, slope, 1.0)
    return s - total.log() * total / slope


def log_peak(sums: Sums, low: Tensor, some: Tensor, *variables: Tensor) -> Tensor:
    """s in [low, 0] at which total = 1; `sums`(s, *variables) are total, which increases with s, and its slope.

    Two Newton steps with gradients, taken at the root, carry its derivatives up to the third order.
    """
    with torch.no_grad():
        fixed = [x.detach() for x in variables]
        s = _search(lambda s: sums(s, *fixed), low.detach(), some)
    for _ in range(2):
        s = _newton_step(s, *sums(s, *variables), some)
    return s


def _search(sums: Sums, low: Tensor, some: Tensor) -> Tensor:
    """The root without derivatives, by Newton on log total.
    If a step leaves the bracket or is more than half as long as the one before last, the bracket
       is halved instead: log total is neither convex nor concave.
    """
    s, high = torch.zeros_like(low), torch.zeros_like(low)
    low = low - 8 * torch.finfo(low.dtype).eps * (1 - low)  # the root of equal logits lies on the edge
    step = before = high - low
    unrolled = torch.compiler.is_compiling() or inside_transform()
    for _ in range(_UNROLLED if unrolled else _MOST):
        total, slope = sums(s)
        newton = _newton_step(s, total, slope, some)
        low = torch.where(some & (total <= 1), s, low)
        high = torch.where(some & (total >= 1), s, high)
        trusted = (newton >= low) & (newton <= high) & ((newton - s).abs() <= before / 2)
        following = torch.where(trusted | ~some, newton, (low + high) / 2)
        before, step = step, (following - s).abs()
        s = following
        if not unrolled and not bool((step > 2 * torch.finfo(s.dtype).eps * (1 - s)).any()):
            break
    return s


def lowest_key(z: Tensor, belongs: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Index of the lowest key whose level belongs, and whether any does; if a level belongs, all above it do.

    A bisection over the sorted keys; -inf is an absent key, which never belongs.
    """
    ordered, order = torch.where(z.isnan(), NEG_INF, z).sort(-1, descending=True)
    keys = z.shape[-1]
    inside = torch.zeros_like(order[..., :1])  # this many keys belong for certain
    outside = torch.full_like(inside, keys + 1)
    for _ in range(math.ceil(math.log2(keys + 1))):
        middle = ((inside + outside) // 2).clamp(min=1, max=keys)
        level = ordered.gather(-1, middle - 1)
        visible = level > NEG_INF
        further = visible & belongs(torch.where(visible, level, 0.0))
        inside, outside = torch.where(further, middle, inside), torch.where(further, outside, middle)
    return order.gather(-1, (inside - 1).clamp(min=0)), inside > 0
