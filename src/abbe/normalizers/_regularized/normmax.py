"""Normmax: the regulariser is the norm of the weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._base import Normalizer
from .._dispatch import row_weights
from .._options import Option, PerHead, heads_option, learn_option
from .._row_map import RowMap, row_map
from .._rows import below_top, finish
from .any_alpha import number_if_fixed
from .root import log_peak, powers_below

_HARD = 1e-6  # for a smaller alpha - 1 the limit is used, argmax


def normmax_reference(logits: Tensor, params: Tensor) -> Tensor:
    """u / sum u, u = [l - tau]_+^(1/(alpha - 1)) with ||u||_alpha = 1, params (alpha,).

    The log of the largest u is found as for entmax. For alpha <= 1 a vertex is best: the top has all the weight, and
    equal keys share it.
    """
    soft = params - 1 > _HARD
    alpha = torch.where(soft, params, 2.0)
    beta = alpha - 1
    gap, visible, top = below_top(logits)
    some = visible.any(-1, keepdim=True)
    z = gap.clamp(min=-2) / beta  # a gap of 1 has no weight, and a large one over a small beta would overflow

    def sums(s: Tensor, z: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        u, above = powers_below(z, alpha - 1, s, visible)
        unit = torch.exp((alpha - 1) * s)  # u^alpha = u unit above: no power of a zero is taken
        return unit * (u * above).sum(-1, keepdim=True), alpha * unit * u.sum(-1, keepdim=True)

    count = visible.sum(-1, keepdim=True).clamp(min=1).to(z.dtype)
    s = log_peak(sums, -count.log() / alpha, some, z, alpha)
    u, _ = powers_below(z, beta, s, visible)
    u = torch.where(soft, u, (visible & (gap == 0)).to(u.dtype))
    total = u.sum(-1, keepdim=True)
    return finish(u / torch.where(some, total, 1.0), logits, params, visible, top)


NORMMAX = row_map("normmax", normmax_reference)


def normmax_weights(logits: Tensor, alpha: float | Tensor) -> Tensor:
    """Normmax along the last dimension: a high alpha spreads the weight over the keys near the top, 1 is argmax.

    Args:
        logits, alpha: as for `entmax_weights`; so are the weights.

    Examples:
        >>> [round(w, 3) for w in abbe.normalizers.normmax_weights(torch.tensor([1.0, 0.5, -1.0]), 2.0).tolist()]
        [0.689, 0.311, 0.0]
    """
    alpha = number_if_fixed("normmax", "alpha", alpha, 0.0)
    params = alpha.to(logits.dtype) if isinstance(alpha, Tensor) else logits.new_full((1,), alpha)
    return row_weights(NORMMAX, logits, params)


class Normmax(Normalizer):
    """The p on the simplex that maximises <l, p> - ||p||_alpha, alpha > 1, arXiv 1901.02324, 2402.13725.

    Jacobian c (I - w 1^T) diag b (I - 1 w^T), b = w^(2 - alpha) on the support, c = ||w||_alpha^(alpha - 1) /
    (alpha - 1). Lipschitz constant n at alpha = 2; below, at most n^(alpha - 1)/(alpha - 1), because I - w 1^T is an
    oblique projection, whose norm grows with the support near a vertex; above, infinite, because b explodes where a
    key enters the support. As n grows nothing changes as long as new keys lie a gap of 1 below the top.
    """

    name = "normmax"
    meaning = "flat weights on the support; high alpha means nearly equal weights, low alpha means one key"
    paper = "1901.02324, 2402.13725"
    example = "normmax:alpha=2"
    options = (Option("alpha", 2.0, "order of the norm", low=1, shown=True), learn_option(), heads_option())
    usual = (1.25, 1.5, 2, 3, 5)
    learnable = ("alpha",)
    alpha: PerHead

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        return NORMMAX, self._value("alpha", logits)

    def _jacobian(self, logits: Tensor) -> Tensor:
        alpha, w = self._value("alpha", logits), self._weights(logits)
        support = w > 0
        positive = torch.where(support, w, 1.0)
        b = torch.where(support, positive ** (2 - alpha), 0 * w)  # NaN stays NaN
        norm = torch.where(support, positive**alpha, 0 * w).sum(-1, keepdim=True) ** ((alpha - 1) / alpha)
        soft = alpha - 1 > _HARD
        c = torch.where(soft, norm / torch.where(soft, alpha - 1, 1.0), 0.0)
        outer = w.unsqueeze(-1) * b.unsqueeze(-2)
        total = b.sum(-1, keepdim=True).unsqueeze(-1)
        inner = torch.diag_embed(b) - outer - outer.mT + total * w.unsqueeze(-1) * w.unsqueeze(-2)
        return c.unsqueeze(-1) * inner

    def _lipschitz(self, keys: int) -> float:
        # With q = sqrt(b), J = c M M^T and M^T = (I - q (w/q)^T) diag q. The first factor is an oblique projection, its
        # norm |q| |w/q|: |J| <= c sum w^(1 - beta) sum w^(1 + beta) max b <= n^beta / beta for beta = alpha - 1 <= 1.
        values = self._number("alpha")
        return max(_norm_bound(alpha - 1, keys) for alpha in (values if isinstance(values, tuple) else (values,)))


def _norm_bound(beta: float, keys: int) -> float:
    if keys == 1:
        return 0.0
    return math.inf if beta > 1 else keys**beta / beta
