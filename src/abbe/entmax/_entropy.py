"""The entropies -Omega of the Fenchel-Young losses: one number per row, 0 for a single key."""

from __future__ import annotations

import torch
from torch import Tensor


def expm1_ratio(t: Tensor) -> Tensor:
    """(e^t - 1)/t, smooth through 0 in all derivatives."""
    near = t.abs() < 0.5  # 15 terms of the series reach float64
    small, far = torch.where(near, t, 0.0), torch.where(near, 1.0, t)
    series = torch.ones_like(t)
    for k in range(16, 1, -1):
        series = 1 + series * small / k
    return torch.where(near, series, torch.expm1(far) / far)


def tsallis(weights: Tensor, alpha: float | Tensor) -> Tensor:
    """sum p (1 - p^beta)/(beta (beta + 1)), beta = alpha - 1: Shannon's entropy at 1, half of Gini's at 2.

    Term by term nothing cancels: the sum keeps its digits near a single key of weight 1.
    """
    positive = torch.where(weights > 0, weights, 1.0)  # a weight of 0 adds no entropy, like a weight of 1
    if isinstance(alpha, Tensor):
        logs = positive.log()
        share = -logs * expm1_ratio((alpha - 1) * logs) / alpha
    elif alpha == 2:
        share = (1 - weights) / 2
    elif alpha == 1.5:
        share = (1 - positive.sqrt()) * (4 / 3)
    elif alpha == 1:
        share = -positive.log()
    else:
        share = -torch.expm1((alpha - 1) * positive.log()) / (alpha * (alpha - 1))
    return (weights * share).sum(-1)


def tsallis_kernel(alpha: float) -> str | None:
    """The kernel of the matching loss; near alpha = 1 a power in float32 would lose digits."""
    if abs(alpha - 1) < 0.05 and alpha != 1:
        return None
    return {1.0: "shannon", 1.5: "root", 2.0: "gini"}.get(alpha, "power")


def norm(weights: Tensor, alpha: float | Tensor) -> Tensor:
    """1 - ||p||_alpha; 0 for alpha <= 1, where the weights of equal keys represent any one of them."""
    peak = weights.detach().amax(-1, keepdim=True)
    peak = torch.where(peak > 0, peak, 1.0)  # the unit, since powers of small weights could underflow
    power = torch.as_tensor(alpha, dtype=weights.dtype, device=weights.device)
    soft = power > 1
    power = torch.where(soft, power, 2.0)
    positive = torch.where(weights > 0, weights, peak)
    raised = torch.where(weights > 0, (positive / peak) ** power, 0 * weights)
    size = peak * raised.sum(-1, keepdim=True).clamp(min=1) ** (1 / power)
    return torch.where(soft, 1 - size, 0 * size).squeeze(-1)
