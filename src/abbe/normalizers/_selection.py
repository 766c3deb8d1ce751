"""Softmax over selected keys: the k largest, the smallest set of a given mass, or those near the largest weight."""

from __future__ import annotations

import torch
from torch import Tensor

from ._base import Normalizer
from ._options import Option
from ._row_map import RowMap, below_top, diagonal_minus_outer, finish, masked_softmax, row_map, softmax_jacobian

__all__ = ["Truncated"]


def _unsorted(kept: Tensor, order: Tensor) -> Tensor:
    """Bring a mask over the sorted keys back to their places."""
    return torch.zeros_like(kept).scatter(-1, order, kept)


def _k_largest(logits: Tensor, k: Tensor) -> Tensor:
    order = logits.detach().argsort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    return _unsorted(torch.broadcast_to(rank < k, logits.shape), order)


def topk_reference(logits: Tensor, params: Tensor) -> Tensor:
    """Softmax over the k largest, params (1, k); of equal logits the earlier keys are kept."""
    z, visible, top = below_top(logits)
    kept = visible & _k_largest(logits, params[..., 1:2])
    return finish(masked_softmax(z, kept), logits, params, visible, top)


def topk_kept_reference(logits: Tensor, params: Tensor) -> Tensor:
    """The full softmax weights of the k largest, params (1, k)."""
    z, visible, top = below_top(logits)
    weights = masked_softmax(z, visible)
    return finish(torch.where(_k_largest(logits, params[..., 1:2]), weights, 0.0), logits, params, visible, top)


def topp_reference(logits: Tensor, params: Tensor) -> Tensor:
    """Softmax over the smallest set with mass >= p, params (1, p); of equal logits the earlier keys are kept."""
    p = params[..., 1:2]
    z, visible, top = below_top(logits)
    # The choice of keys has no derivative; their weights below have one.
    weights = masked_softmax(z.detach(), visible)
    order = logits.detach().argsort(dim=-1, descending=True, stable=True)
    mass = weights.gather(-1, order).cumsum(-1)
    before = torch.cat([torch.zeros_like(mass[..., :1]), mass[..., :-1]], -1)
    # With p = 1 all are kept: the rounded mass of some may already equal the total.
    kept = visible & _unsorted((before < p * mass[..., -1:]) | (p >= 1), order)
    return finish(masked_softmax(z, kept), logits, params, visible, top)


def threshold_reference(logits: Tensor, params: Tensor) -> Tensor:
    """Softmax over the keys with weight >= rel * largest, params (1, rel)."""
    z, visible, top = below_top(logits)
    return finish(masked_softmax(z, visible & (z.detach().exp() >= params[..., 1:2])), logits, params, visible, top)


TOPK = row_map("topk", topk_reference, "selection.topk", "softmax.softmax_backward")
TOPK_KEPT = row_map("topk-kept", topk_kept_reference, "selection.topk_kept", "shaped.kept_backward")
TOPP = row_map("topp", topp_reference, "selection.topp", "softmax.softmax_backward")
THRESHOLD = row_map("threshold", threshold_reference, "selection.threshold", "softmax.softmax_backward")


class _Selection(Normalizer):
    """Softmax on a set that is constant almost everywhere: there its Jacobian is that of softmax."""

    continuous = False

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        return self.row_map, logits.new_tensor([1.0, self._given[self.options[0].name]])

    def _jacobian(self, logits: Tensor) -> Tensor:
        return softmax_jacobian(self._weights(logits))

    def _lipschitz(self, keys: int) -> float:
        return 0.5 if keys > 1 else 0.0


class TopK(_Selection):
    """Softmax over the k largest logits (earlier keys win ties); ``renormalize=false`` keeps the full softmax
    weights of these k instead, arXiv 1912.11637.

    Jacobian diag w - w w^T (w of the selected), or D (diag p - p p^T) without renormalisation. Spectral norm at
    most 1/2 almost everywhere, but discontinuous where the k-th and the next logit meet. As n grows the support
    stays k and the entropy at most ln k.
    """

    name = "topk"
    aliases = ("top-k", "top-k-softmax")
    meaning = "a hard limit on the keys; high k is softmax, low k means few keys regardless of the row"
    paper = "1912.11637"
    example = "topk:k=32"
    options = (
        Option("k", 32, "keys to keep", "count", 1, closed="low", shown=True),
        Option("renormalize", True, "softmax over the kept keys alone", "flag"),
    )
    usual = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

    def __init__(self, **given: object) -> None:
        super().__init__(**given)
        self.row_map = TOPK if self.renormalize else TOPK_KEPT
        self.sums_to_one = self.renormalize  # type: ignore[misc]

    def _jacobian(self, logits: Tensor) -> Tensor:
        if self.renormalize:
            return super()._jacobian(logits)
        z, visible, _ = below_top(logits)
        w = self._weights(logits)
        return diagonal_minus_outer(w, w, masked_softmax(z, visible))

    def _lipschitz(self, keys: int) -> float:
        return 0.5 if keys > 1 and (self.k > 1 or not self.renormalize) else 0.0


class TopP(_Selection):
    """Softmax over the smallest set whose softmax mass is at least p (earlier keys win ties), arXiv 2502.02770.

    Jacobian diag w - w w^T. Spectral norm at most 1/2 almost everywhere, discontinuous where the set changes. As
    n grows the set grows with the flatness of the row: it adapts, and disperses with softmax.
    """

    name = "topp"
    aliases = ("top-p", "top-p-softmax")
    meaning = "keeps the bulk of the mass; high p means more keys (1 is softmax), low p means few"
    paper = "2502.02770"
    example = "topp:p=0.9"
    options = (Option("p", 0.9, "mass to keep", low=0, high=1, closed="high", shown=True),)
    usual = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
    row_map = TOPP


class Threshold(_Selection):
    """Softmax over the keys whose weight is at least rel times the largest, arXiv 2503.23174.

    Jacobian diag w - w w^T. Spectral norm at most 1/2 almost everywhere, discontinuous where a key crosses the
    threshold. As n grows only keys within -ln(rel) of the top logit count, however many others there are.
    """

    name = "threshold"
    aliases = ("threshold-hybrid",)
    meaning = "drops what is far below the best; high rel means few keys, rel near 0 is softmax"
    paper = "2503.23174"
    example = "threshold:rel=0.1"
    options = (Option("rel", 0.1, "fraction of the largest weight", low=0, high=1, closed="both", shown=True),)
    usual = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    row_map = THRESHOLD


class Truncated(Normalizer):
    """The N largest weights of another normalizer, scaled so that a row keeps its sum. For measurements only.

    With softmax it is top-k. A learned sink counts as a key, and of equal weights any may be kept. A small N drops most
    of the row, a large one changes nothing.

    Args:
        inner: the normalizer whose weights are truncated.
        keep: N >= 1.

    Examples:
        >>> top_two = abbe.normalizers.Truncated(abbe.normalizer("softmax"), 2)
        >>> [round(w, 3) for w in top_two(torch.tensor([2.0, 1.0, 0.0, -1.0])).tolist()]
        [0.731, 0.269, 0.0, 0.0]
    """

    name = "truncated"
    continuous = False

    def __init__(self, inner: Normalizer, keep: int) -> None:
        super().__init__()
        self.inner, self.keep = inner, keep

    def _weights(self, logits: Tensor) -> Tensor:
        weights = self.inner._weights(logits)
        if self.keep >= weights.shape[-1]:
            return weights
        top = weights.topk(self.keep, -1)
        kept, total = top.values.sum(-1, keepdim=True), weights.sum(-1, keepdim=True)
        scale = torch.where(kept > 0, total / torch.where(kept > 0, kept, 1.0), 1.0)
        return torch.zeros_like(weights).scatter_(-1, top.indices, top.values * scale)

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        raise TypeError("truncated weights are no row map")

    def _jacobian(self, logits: Tensor) -> Tensor:
        raise TypeError("truncated weights are for measurements: they have no Jacobian")

    def _lipschitz(self, keys: int) -> float:
        raise TypeError("truncated weights are for measurements: they have no Lipschitz constant")
