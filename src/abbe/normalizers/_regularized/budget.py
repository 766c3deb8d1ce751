"""Budget: weights between 0 and 1 with a given sum, the projection on k-subsets."""

from __future__ import annotations

import torch
from torch import Tensor

from .._base import Normalizer
from .._dispatch import RowMap, row_map, row_weights
from .._options import Option
from .._rows import NEG_INF, below_top, diagonal_minus_outer, finish, row_top, visible_keys
from .any_alpha import number_if_fixed

_ROUNDS = 4  # the sort is right but for rounding, so that the sets settle in one or two


def budget_reference(logits: Tensor, params: Tensor) -> Tensor:
    """clip(l - tau, 0, 1) with the sum min(budget, n), params (budget,).

    The sum is piecewise linear in tau, with corners at l and at l - 1. A sort finds the piece; on it tau is a mean.
    """
    visible = visible_keys(logits)
    top = row_top(logits, visible)
    z = below_top(logits, visible, top)
    count = visible.sum(-1, keepdim=True).to(z.dtype)
    budget = torch.minimum(params, count)
    with torch.no_grad():
        full, between, anchor = _pieces(z.detach(), visible, budget.detach(), count)
    # Offsets from a key between the bounds: next to it a lead of 1e4 of the top costs no digits.
    offset = torch.where(between, z - anchor, 0.0)
    members = between.sum(-1, keepdim=True).clamp(min=1)
    tau = (offset.sum(-1, keepdim=True) + full.sum(-1, keepdim=True) - budget) / members
    w = torch.where(full, 1.0, torch.where(between, (offset - tau).clamp(0, 1), 0.0))
    excess = torch.where(between, (w.detach().sum(-1, keepdim=True) - budget.detach()) / members, 0.0)
    return finish((w - excess).clamp(0, 1), logits, params, visible, top)


def _pieces(z: Tensor, visible: Tensor, budget: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys of weight 1, keys between 0 and 1, and the largest logit of the latter (without any: an arbitrary one)."""
    shown = torch.where(visible, z, NEG_INF)
    corners, order = torch.cat([shown, shown - 1], -1).sort(-1, descending=True)
    sign = torch.where(order < z.shape[-1], 1.0, -1.0).to(z.dtype)
    slope = sign.cumsum(-1)  # keys between the bounds when tau lies just below a corner
    fall = torch.where(corners[..., 1:] > NEG_INF, corners[..., :-1] - corners[..., 1:], 0.0)
    total = torch.cat([torch.zeros_like(z[..., :1]), (slope[..., :-1] * fall).cumsum(-1)], -1)
    last = ((total < budget) & (corners > NEG_INF)).sum(-1, keepdim=True).clamp(min=1) - 1
    start, slope, total = (x.gather(-1, last) for x in (corners, slope, total))
    anchor = torch.where(start > NEG_INF, start, 0.0)
    tau = (total - budget) / slope.clamp(min=1)
    for _ in range(_ROUNDS):
        height = torch.where(visible, (z - anchor) - tau, -1.0)
        full, between = height >= 1, (height > 0) & (height < 1)
        highest = torch.where(between, z, NEG_INF).amax(-1, keepdim=True)
        moved = torch.where(highest > NEG_INF, highest, anchor)
        members = between.sum(-1, keepdim=True)
        mean = torch.where(between, z - moved, 0.0).sum(-1, keepdim=True) + full.sum(-1, keepdim=True) - budget
        tau = torch.where(members > 0, mean / members.clamp(min=1), tau)
        anchor = moved
    everything = budget >= count
    return (full | everything) & visible, between & ~everything, anchor


BUDGET = row_map("budget", budget_reference)


def budget_weights(logits: Tensor, budget: float | Tensor) -> Tensor:
    """Budget along the last dimension of float32 or float64 logits, budget >= 0 a number or one per row, (..., 1)."""
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
