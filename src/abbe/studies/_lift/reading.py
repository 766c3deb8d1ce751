"""One window through a swapped model: its loss, and how many keys get exactly no weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...models import AttentionCall, Window
from .._engine.swapped.reading import SwapReading

_MEANS = ("zeros", "active", "effective_tokens")


class SparsityReader(SwapReading[Tensor]):
    """Adds to the loss of a window the means over all queries of all heads."""

    def _note(
        self, call: AttentionCall, window: Window, positions: Tensor, weights_of: Callable[[Tensor], Tensor]
    ) -> Tensor:
        visible = call.logits(positions)[0] > -torch.inf
        weights = weights_of(positions).float()
        keys = visible.sum(-1).clamp(min=1).float()
        zeros = ((weights == 0) & visible).sum(-1) / keys
        squares = weights.square().sum(-1)
        effective = weights.sum(-1).square() / torch.where(squares > 0, squares, torch.nan)
        columns = (zeros, (weights > 0).sum(-1).float(), effective)
        return torch.stack([column.nanmean(-1) for column in columns], -1).cpu()

    def _means(self, noted: Sequence[Tensor]) -> dict[str, float]:
        means = torch.cat(list(noted)).nanmean(0).tolist()  # every head of every layer counts the same
        return dict(zip(_MEANS, means, strict=True))
