"""One window through a swapped model: its loss, and how selective the swapped weights are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ... import measures
from ...measures import Reading, Rows, State
from ...models import AttentionCall, Window
from .._engine.swapped.reading import SwapReading
from .._engine.window import BLOCK, seeded

SELECTIVITY = ("effective_tokens", "active", "zeros", "separability", "separable", "distance_per_token")


class SwapReader(SwapReading[State]):
    """Listens to a swap; `read` gives the loss of a window and the mean over heads of every measure.

    All normalizers see the same queries and random sets, so they can be compared window by window.
    """

    def _note(
        self, call: AttentionCall, window: Window, positions: Tensor, weights_of: Callable[[Tensor], Tensor]
    ) -> State:
        chance = seeded(self._settings, window, f"random sets of {call.name}")
        rows_at_once = max(1, BLOCK // (call.query.shape[1] * call.key.shape[-2]))
        state: State = {}
        for block in torch.split(positions, rows_at_once):
            logits, weights = call.logits(block)[0].float(), weights_of(block).to(call.value.device).float()
            state = measures.update(
                state, readings(Rows(logits, weights, call.value[0].float()), self._settings.sizes, chance)
            )
        return state

    def _means(self, noted: Sequence[State]) -> dict[str, float]:
        """Every head of every layer counts the same; heads without a value are left out, NaN if none has one."""
        of_layers = [measures.compute(state) for state in noted]
        # Layers may lie on different devices.
        values = {name: [layer[name].value.flatten().cpu() for layer in of_layers] for name in SELECTIVITY}
        return {name: float(torch.cat(of_all).nanmean()) for name, of_all in values.items()}


def readings(rows: Rows, grid: tuple[int, ...], chance: torch.Generator) -> dict[str, Reading]:
    """The measures of selectivity; those of sets are for the one size of the grid."""
    keys, zero = rows.count, (rows.visible & (rows.weights == 0)).sum(-1)
    of_sets = measures.geometry(rows, measures.choose_sets(rows, grid, chance))
    return {
        "effective_tokens": measures.dispersion(rows)["effective_tokens"],
        "active": measures.active_keys(rows),
        "zeros": Reading(zero / keys.clamp(min=1), keys > 0),
        "separable": measures.separable_weight(rows, grid[0]),
        "separability": of_sets["separability"],
        "distance_per_token": of_sets["distance_per_token"],
    }
