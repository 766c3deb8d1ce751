"""Windows through a swapped model: the loss of each, and what a study reads from the swapped weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ....models import AttentionCall, LoadedModel, Swap, Window
from ..loss import next_token_losses
from ..settings import Settings
from ..window import query_positions

Noted = TypeVar("Noted")


class SwapReading(ABC, Generic[Noted]):
    """Listens to a swap while it reads; a study defines what it notes per layer, and how to average that."""

    def __init__(self, model: LoadedModel, swapped: Swap, settings: Settings) -> None:
        self._model, self._settings = model, settings
        self._window: Window | None = None
        self._noted: list[Noted] = []
        swapped.listen(self._hear)

    @torch.no_grad()
    def read(self, window: Window) -> dict[str, float]:
        """The loss, and the means over the layers."""
        self._window, self._noted = window, []
        try:
            loss = float(next_token_losses(self._model, window.tokens).mean())
        finally:
            self._window = None
        return {"loss": loss} | self._means(self._noted)

    def read_all(self, windows: Sequence[Window], on_window: Callable[[], object]) -> dict[str, list[float]]:
        by_window: dict[str, list[float]] = {}
        for window in windows:
            for name, value in self.read(window).items():
                by_window.setdefault(name, []).append(value)
            on_window()
        return by_window

    def _hear(self, call: AttentionCall, weights_of: Callable[[Tensor], Tensor]) -> None:
        if self._window is not None:
            positions = query_positions(call.query.shape[-2], self._settings, self._window)
            self._noted.append(self._note(call, self._window, positions, weights_of))

    @abstractmethod
    def _note(
        self, call: AttentionCall, window: Window, positions: Tensor, weights_of: Callable[[Tensor], Tensor]
    ) -> Noted:
        """What to note of a layer at these queries."""

    @abstractmethod
    def _means(self, noted: Sequence[Noted]) -> dict[str, float]:
        """Over the layers of a window."""
