"""One window through a swapped model: its loss, and how selective the swapped weights are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...measures import (
    Reading,
    Rows,
    State,
    active_keys,
    choose_sets,
    compute,
    dispersion,
    geometry,
    separable_weight,
    update,
)
from ...models import AttentionCall, LoadedModel, Swap, Window
from .._engine.loss import next_token_losses
from .._engine.settings import Settings
from .._engine.window import BLOCK, query_positions, seeded

SELECTIVITY = ("effective_tokens", "active", "zeros", "separability", "separable", "distance_per_token")


class SwapReader:
    """Listens to a swap; `read` gives the loss of a window and the mean over heads of every measure.

    All normalizers see the same queries and the same random sets, so that they can be compared window by window.
    """

    def __init__(self, model: LoadedModel, swapped: Swap, settings: Settings) -> None:
        self._model, self._settings = model, settings
        self._window: Window | None = None
        self._states: list[State] = []
        swapped.listen(self._hear)

    @torch.no_grad()
    def read(self, window: Window) -> dict[str, float]:
        """NaN where no query defines a measure."""
        self._window, self._states = window, []
        try:
            loss = next_token_losses(self._model, window.tokens).mean()
        finally:
            self._window = None
        return {"loss": float(loss)} | _mean_over_heads(self._states)

    def _hear(self, call: AttentionCall, weights_of: Callable[[Tensor], Tensor]) -> None:
        if self._window is None:
            return
        positions = query_positions(call.query.shape[-2], self._settings, self._window)
        chance = seeded(self._settings, self._window, f"random sets of {call.name}")
        rows_at_once = max(1, BLOCK // (call.query.shape[1] * call.key.shape[-2]))
        state: State = {}
        for block in torch.split(positions, rows_at_once):
            logits, weights = call.logits(block)[0].float(), weights_of(block).to(call.value.device).float()
            state = update(state, readings(Rows(logits, weights, call.value[0].float()), self._settings.sizes, chance))
        self._states.append(state)


def readings(rows: Rows, grid: tuple[int, ...], chance: torch.Generator) -> dict[str, Reading]:
    """The measures of selectivity; those of sets are for the one size of the grid."""
    keys = rows.count
    some, zero = keys > 0, (rows.visible & (rows.weights == 0)).sum(-1)
    of_sets = geometry(rows, choose_sets(rows, grid, chance))
    return {
        "effective_tokens": dispersion(rows)["effective_tokens"],
        "active": active_keys(rows),
        "zeros": Reading(zero / keys.clamp(min=1), some),
        "separable": separable_weight(rows, grid[0]),
        "separability": of_sets["separability"],
        "distance_per_token": of_sets["distance_per_token"],
    }


def _mean_over_heads(states: list[State]) -> dict[str, float]:
    """Every head of every layer counts the same; heads without a value are left out."""
    of_layers = [compute(state) for state in states]
    # Layers may lie on different devices.
    values = {name: [layer[name].value.flatten().cpu() for layer in of_layers] for name in SELECTIVITY}
    return {name: float(torch.cat(of_all).nanmean()) for name, of_all in values.items()}
