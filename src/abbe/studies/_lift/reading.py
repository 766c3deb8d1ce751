"""One window through a swapped model: its loss, and how many keys get no weight at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...models import AttentionCall, LoadedModel, Swap, Window
from .._engine.loss import next_token_losses
from .._engine.settings import Settings
from .._engine.window import query_positions

READ = ("loss", "zeros", "active", "effective_tokens")


class SparsityReader:
    """Listens to a swap; `read` gives the loss of a window, and means over all queries of all heads."""

    def __init__(self, model: LoadedModel, swapped: Swap, settings: Settings) -> None:
        self._model, self._settings = model, settings
        self._window: Window | None = None
        self._layers: list[Tensor] = []
        swapped.listen(self._hear)

    @torch.no_grad()
    def read(self, window: Window) -> dict[str, float]:
        self._window, self._layers = window, []
        try:
            loss = float(next_token_losses(self._model, window.tokens).mean())
        finally:
            self._window = None
        means = torch.cat(self._layers).nanmean(0).tolist()  # every head of every layer counts the same
        return dict(zip(READ, (loss, *means), strict=True))

    def read_all(self, windows: Sequence[Window], on_window: Callable[[], object]) -> dict[str, list[float]]:
        by_window: dict[str, list[float]] = {name: [] for name in READ}
        for window in windows:
            for name, value in self.read(window).items():
                by_window[name].append(value)
            on_window()
        return by_window

    def _hear(self, call: AttentionCall, weights_of: Callable[[Tensor], Tensor]) -> None:
        if self._window is None:
            return
        positions = query_positions(call.query.shape[-2], self._settings, self._window)
        visible = call.logits(positions)[0] > -torch.inf
        weights = weights_of(positions).float()
        keys = visible.sum(-1).clamp(min=1).float()
        zeros = ((weights == 0) & visible).sum(-1) / keys
        squares = weights.square().sum(-1)
        effective = weights.sum(-1).square() / torch.where(squares > 0, squares, torch.nan)
        columns = (zeros, (weights > 0).sum(-1).float(), effective)
        self._layers.append(torch.stack([column.nanmean(-1) for column in columns], -1).cpu())
