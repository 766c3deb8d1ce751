"""alpha-entmax for every alpha > 0: softmax at 1, heavy tails without zeros below, `beyond_two` the sparsest."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._errors import AbbeError
from .._dispatch import inside_transform, row_weights
from .._entmax import entmax_map
from .._row_map import RowMap, row_map
from .._rows import below_top, finish
from .._softmax import SOFTMAX
from .beyond_two import BEYOND_TWO
from .root import log_peak, powers_below


def any_alpha_reference(logits: Tensor, params: Tensor) -> Tensor:
    """[beta l - tau]_+^(1/beta), params (beta,), beta = alpha - 1 in (-1, 1]; beta = 0 is softmax."""
    beta = params
    z, visible, top = below_top(logits)
    some = visible.any(-1, keepdim=True)

    def sums(s: Tensor, z: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        w, above = powers_below(z, beta, s, visible)
        return w.sum(-1, keepdim=True), (w / above).sum(-1, keepdim=True)

    count = visible.sum(-1, keepdim=True).clamp(min=1).to(z.dtype)
    s = log_peak(sums, -count.log(), some, z, beta)
    w, _ = powers_below(z, beta, s, visible)
    total = torch.where(some, w.detach().sum(-1, keepdim=True), 1.0)  # no gradient: in exact arithmetic it is 1
    return finish(w / total, logits, params, visible, top)


ANY_ALPHA = row_map("entmax-any", any_alpha_reference)


def entmax_weights(logits: Tensor, alpha: float | Tensor) -> Tensor:
    """alpha-entmax along the last dimension; kernels and closed forms serve alpha in [1, 2].

    A high alpha gives few positive weights, 1 is softmax, and below 1 no weight is 0.

    Args:
        logits: (..., keys), float32 or float64.
        alpha: > 0, a number or one per row, (..., 1); it may need a gradient.

    Returns:
        Weights of the same shape, with a sum of 1 per row.

    Examples:
        >>> [round(w, 3) for w in abbe.normalizers.entmax_weights(torch.tensor([1.0, 0.5, -1.0]), 1.5).tolist()]
        [0.674, 0.326, 0.0]
    """
    alpha = number_if_fixed("entmax", "alpha", alpha, 0.0)
    if not isinstance(alpha, Tensor):
        which, params = _map(logits, alpha)
        return row_weights(which, logits, params)
    beta = alpha.to(logits.dtype) - 1
    # A traced graph cannot read values: it uses the maps that take all of them.
    unknown = torch.compiler.is_compiling() or inside_transform()
    if not unknown and bool(((beta >= 0) & (beta <= 1)).all()):
        which, params = entmax_map(logits.new_ones(1), beta)
        return row_weights(which, logits, params)
    beyond = beta > 1
    if not unknown and not bool(beyond.any()):
        return row_weights(ANY_ALPHA, logits, beta)
    sparser = row_weights(BEYOND_TWO, logits, torch.where(beyond, beta, 2.0))
    return torch.where(beyond, sparser, row_weights(ANY_ALPHA, logits, torch.where(beyond, 0.5, beta)))


def _map(logits: Tensor, alpha: float) -> tuple[RowMap, Tensor]:
    if alpha == 1:
        return SOFTMAX, logits.new_ones(1)
    if 1 < alpha <= 2:
        return entmax_map(logits.new_ones(1), alpha - 1)
    return BEYOND_TWO if alpha > 2 else ANY_ALPHA, logits.new_full((1,), alpha - 1)


def number_if_fixed(owner: str, name: str, value: float | Tensor, low: float, closed: bool = False) -> float | Tensor:
    """A parameter as a number if all rows share it and it has no gradient; an AbbeError if it is out of range."""
    if isinstance(value, Tensor):
        if torch.compiler.is_compiling() or inside_transform():
            return value
        if value.numel() != 1 or value.requires_grad:
            fits = (value >= low) if closed else (value > low)
            if not bool((fits & value.isfinite()).all()):
                raise AbbeError(f"{owner}: {name} must be {'>=' if closed else '>'} {low:g} everywhere")
            return value
        value = float(value)
    if not (low <= value < float("inf") if closed else low < value < float("inf")):
        raise AbbeError(f"{owner}: {name} must be a number {'>=' if closed else '>'} {low:g}, got {value!r}")
    return float(value)
