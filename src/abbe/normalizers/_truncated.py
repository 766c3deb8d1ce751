"""Only the largest weights of another normalizer, to measure how many keys a model needs."""

from __future__ import annotations

import torch
from torch import Tensor

from ._base import Normalizer
from ._row_map import RowMap


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
