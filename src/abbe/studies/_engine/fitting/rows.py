"""Rows to calibrate on: logits, values and outputs of sampled queries in every layer of the unchanged model.

What is special: a layer's rows are kept until it is fitted, so layers are read in portions that fit in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...._float64 import where_double
from ....models import AttentionCall, LoadedModel, Tap, Window
from ....normalizers import normalizer
from ..passes import run_model
from ..settings import Settings
from ..window import query_positions

_NUMBERS_AT_ONCE = 1 << 26  # per portion: a quarter of a gigabyte


@dataclass(frozen=True, eq=False)
class LayerRows:
    """What one layer does with the sampled queries.

    Attributes:
        logits: (window, head, query, key); a learned sink is an additional first key, whose value is 0.
        values: (window, head or key head, key, width).
        outputs: (window, head, query, width), of the baseline.
    """

    logits: Tensor
    values: Tensor
    outputs: Tensor

    def averaged(self, weights: Tensor) -> Tensor:
        """The outputs with these weights."""
        batch, heads, queries, keys = weights.shape
        grouped = weights.reshape(batch, self.values.shape[1], -1, keys)
        return (grouped @ self.values).view(batch, heads, queries, -1)

    def of_heads(self, heads: Sequence[int]) -> LayerRows:
        if list(heads) == list(range(self.logits.shape[1])):
            return self
        shared = self.logits.shape[1] // self.values.shape[1]
        values = self.values[:, [head // shared for head in heads]]
        return LayerRows(self.logits[:, list(heads)], values, self.outputs[:, list(heads)])


class RowReader:
    """Reads the rows of some layers in one pass over the windows."""

    def __init__(self, model: LoadedModel, tap: Tap, windows: Sequence[Window], settings: Settings) -> None:
        self._model, self._windows, self._settings = model, windows, settings
        self._wanted: Collection[str] = ()
        self._rows: dict[str, list[LayerRows]] = {}
        tap.listen(self._read)

    @torch.no_grad()
    def read(self, names: Collection[str]) -> dict[str, LayerRows]:
        """The rows of these layers over all windows."""
        self._wanted, self._rows = set(names), {name: [] for name in names}
        try:
            for window in self._windows:
                self._window = window
                run_model(self._model, window.tokens)
        finally:
            self._wanted = ()  # ignore the passes of other readers of the tap
        by_layer, self._rows = self._rows, {}
        return {name: _joined(parts) for name, parts in by_layer.items() if parts}

    def _read(self, call: AttentionCall) -> None:
        if call.name not in self._wanted:
            return
        queries = query_positions(call.query.shape[-2], self._settings, self._window)
        logits, values = where_double(call.logits(queries, sink=True).float()), where_double(call.value.float())
        if call.sink is not None:
            values = torch.cat([torch.zeros_like(values[..., :1, :]), values], -2)
        rows = LayerRows(logits, values, values[:0])
        self._rows[call.name].append(LayerRows(logits, values, rows.averaged(normalizer("softmax")(logits))))


def _joined(parts: Sequence[LayerRows]) -> LayerRows:
    return LayerRows(*(torch.cat([getattr(part, name) for part in parts]) for name in ("logits", "values", "outputs")))


def portions(layers: Sequence[str], heads: int, windows: int, queries: int, length: int) -> Iterator[Sequence[str]]:
    """Layers whose logits fit in memory together."""
    at_once = max(1, _NUMBERS_AT_ONCE // (heads * windows * queries * length))
    for start in range(0, len(layers), at_once):
        yield layers[start : start + at_once]
