"""Rows of logits that no model should make: infinities, NaN, 1e30 and denormals, mixed with ordinary ones."""

from __future__ import annotations

import torch
from torch import Tensor

KEYS = 19  # no multiple of a vector


def wild_rows(rows: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """(rows, KEYS) logits; about a third of the rows hold NaN or +inf, and one in twenty has no key at all."""
    generator = torch.Generator().manual_seed(seed)

    def chance(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    limits = torch.finfo(dtype)
    huge, denormal = min(1e30, limits.max / 4), limits.smallest_normal / 4
    scales = torch.tensor([1e-3, 0.5, 2.0, 2.0, 20.0, 1e4, huge, denormal], dtype=torch.float64)
    scale = scales[torch.randint(len(scales), (rows, 1), generator=generator)]
    logits = scale * torch.randn(rows, KEYS, generator=generator, dtype=torch.float64)
    logits = torch.where(chance(rows, 1) < 0.1, logits.mul(2).round().div(2), logits)  # ties
    rare = 0.3 * chance(rows, 1) ** 2  # how often a row has each of these
    for value in (0.0, -0.0, huge, -huge, denormal, -denormal, limits.smallest_normal, -torch.inf):
        logits = torch.where((chance(rows, KEYS) < rare) & (chance(rows, 1) < 0.3), value, logits)
    for value in (torch.nan, torch.inf):
        logits = torch.where((chance(rows, KEYS) < rare) & (chance(rows, 1) < 0.4), value, logits)
    logits = torch.where(chance(rows, KEYS) < rare, -torch.inf, logits)
    return torch.where(chance(rows, 1) < 0.05, -torch.inf, logits).to(dtype)


def wild_mask(logits: Tensor, seed: int = 0) -> Tensor:
    """Hides a key in five: whatever stands there must not be seen."""
    return torch.rand(logits.shape, generator=torch.Generator().manual_seed(1000 + seed)) < 0.8
