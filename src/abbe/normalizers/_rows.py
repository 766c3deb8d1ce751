"""What the references of row maps share: visible keys, the top of a row, softmax over some keys, Jacobians."""

from __future__ import annotations

import torch
from torch import Tensor

NEG_INF = float("-inf")


def visible_keys(logits: Tensor) -> Tensor:
    """True at visible keys. NaN counts as visible: it must not vanish as if it were masked."""
    return logits != NEG_INF


def visible_and_top(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Visible keys, and the largest logit of every row (0 without keys), shape (..., 1), without gradient."""
    visible = visible_keys(logits)
    return visible, torch.where(visible.any(-1, keepdim=True), logits.detach().amax(-1, keepdim=True), 0.0)


def below_top(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """logits - top, 0 at absent keys; then the visible keys and the top.

    A gap beyond the largest number counts as that number: a weight of 0 times infinity would be NaN in gradients.
    """
    visible, top = visible_and_top(logits)
    return torch.where(visible, (logits - top).clamp(min=lowest(logits)), 0.0), visible, top


def lowest(logits: Tensor) -> float:
    """The most negative finite number of the dtype."""
    return torch.finfo(logits.dtype).min


def finish(weights: Tensor, logits: Tensor, params: Tensor, visible: Tensor, top: Tensor) -> Tensor:
    """Zeros at absent keys; NaN throughout a row that holds NaN or +inf, in the weights and in all derivatives.

    Such a row becomes its logits and parameters times NaN, as a constant NaN would have a gradient of 0. The factor
    stands outside of `where`: inside, it would multiply the 0 that `where` sends back to the other rows into NaN.
    """
    # The largest logit is NaN or +inf if any is.
    sound = torch.isfinite(top)
    kept = torch.where(sound, torch.where(visible, weights, 0.0), logits)
    factor = torch.where(sound, 1.0, params.sum(-1, keepdim=True)) * torch.where(sound, 1.0, float("nan"))
    return kept * factor


def masked_softmax(scores: Tensor, kept: Tensor) -> Tensor:
    """Softmax over the kept keys, zeros elsewhere; a row that keeps none is all zeros, with zero gradients."""
    some = kept.any(-1, keepdim=True)
    # A row of -inf alone would give NaN, also in its gradient: it keeps its scores, and is zeroed below.
    weights = torch.softmax(torch.where(kept | ~some, scores, NEG_INF), -1)
    return torch.where(kept, weights, 0.0)


def diagonal_minus_outer(diagonal: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """diag(d) - left right^T for every row, shape (..., L, L)."""
    return torch.diag_embed(diagonal) - left.unsqueeze(-1) * right.unsqueeze(-2)


def softmax_jacobian(weights: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """scale (diag w - w w^T); also correct if the weights sum to less than 1 because of a sink."""
    return diagonal_minus_outer(scale * weights, scale * weights, weights)
