"""Budget: weights between 0 and 1 with a given sum, the projection on k-subsets."""

from __future__ import annotations

import torch
from torch import Tensor

from .._base import Normalizer
from .._dispatch import row_weights
from .._options import Option
from .._row_map import RowMap, row_map
from .._rows import NEG_INF, diagonal_minus_outer, finish, visible_and_top
from .any_alpha import number_if_fixed
from .root import lowest_key


def budget_reference(logits: Tensor, params: Tensor) -> Tensor:
    """clip(l - tau, 0, 1) with the sum min(budget, n), params (budget,).

    The sum falls as tau grows, so two bisections over the sorted keys find which weights are 0 and which are 1. On
    the others tau is a mean.
    """
    visible, top = visible_and_top(logits)
    budget = torch.minimum(params, visible.sum(-1, keepdim=True).to(logits.dtype))
    z = torch.where(visible, logits, 0.0)
    with torch.no_grad():
        full, between = _sets(logits.detach(), visible, budget.detach())
        # Offsets from a key between the bounds, not from the top: far below a leading key they would lose their digits.
        highest = torch.where(between, logits.detach(), NEG_INF).amax(-1, keepdim=True)
        anchor = torch.where(highest > NEG_INF, highest, 0.0)
    offset = torch.where(between, z - anchor, 0.0)
    members = between.sum(-1, keepdim=True).clamp(min=1)
    tau = (offset.sum(-1, keepdim=True) + full.sum(-1, keepdim=True) - budget) / members
    w = torch.where(full, 1.0, torch.where(between, offset - tau, 0.0)).clamp(0, 1)
    excess = (w.detach().sum(-1, keepdim=True) - budget.detach()) / members  # no gradient: exactly it is 0
    return finish((w - torch.where(between, excess, 0.0)).clamp(0, 1), logits, params, visible, top)


def _sets(logits: Tensor, visible: Tensor, budget: Tensor) -> tuple[Tensor, Tensor]:
    """The keys of weight 1, and those between 0 and 1."""

    def total(level: Tensor, of_level: float) -> Tensor:
        """The sum if tau is such that a key at this level weighs 0 or 1."""
        return torch.where(visible, (logits - level + of_level).clamp(0, 1), 0.0).sum(-1, keepdim=True)

    def reaching(lowest: tuple[Tensor, Tensor]) -> Tensor:
        index, some = lowest
        return visible & some & (logits >= logits.gather(-1, index))

    positive = reaching(lowest_key(logits, lambda level: total(level, 0.0) < budget))
    full = reaching(lowest_key(logits, lambda level: total(level, 1.0) <= budget))
    return full, positive & ~full


BUDGET = row_map("budget", budget_reference)


def budget_weights(logits: Tensor, budget: float | Tensor) -> Tensor:
    """Weights in [0, 1] with a given sum, along the last dimension: a high budget selects many keys, a low one few.

    Args:
        logits: (..., keys), float32 or float64.
        budget: >= 0, a number or one per row, (..., 1); it may need a gradient.

    Returns:
        Weights of the same shape, with the sum min(budget, n) per row.

    Examples:
        >>> abbe.normalizers.budget_weights(torch.tensor([3.0, 0.5, 0.0]), 2.0).tolist()
        [1.0, 0.75, 0.25]
    """
    budget = number_if_fixed("budget", "budget", budget, 0.0, closed=True)
    params = budget.to(logits.dtype) if isinstance(budget, Tensor) else logits.new_full((1,), budget)
    return row_weights(BUDGET, logits, params)


class Budget(Normalizer):
    """clip(l - tau, 0, 1) with the sum min(budget, n): the nearest point to l with weights in [0, 1],
    arXiv 2402.13725 (k-subsets).

    Jacobian diag(1_B) - 1_B 1_B^T / |B| on the keys B with weights strictly between 0 and 1. Lipschitz constant 1:
    the spectral norm is 0 or 1; 0 for rows of no more keys than the budget, where all weights are 1. As n grows
    nothing changes as long as new keys lie below tau. A budget of 1 is sparsemax.
    """

    name = "budget"
    aliases = ("k-subsets", "budget-sparsemax")
    meaning = "a soft subset of given size, no key above 1; high budget means many keys, 1 is sparsemax"
    paper = "2402.13725"
    example = "budget:budget=2"
    options = (Option("budget", 2.0, "sum of the weights", low=0, shown=True),)
    usual = (2, 4, 8, 16, 32)
    sums_to_one = False
    budget: float

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        return BUDGET, logits.new_full((1,), self.budget)

    def _jacobian(self, logits: Tensor) -> Tensor:
        w = self._weights(logits)
        between = torch.where((w > 0) & (w < 1), 1.0, 0 * w)  # NaN stays NaN
        members = between.sum(-1, keepdim=True)
        return diagonal_minus_outer(between, between, between / torch.where(members > 0, members, 1.0))

    def _lipschitz(self, keys: int) -> float:
        return 1.0 if keys > max(self.budget, 1) else 0.0
