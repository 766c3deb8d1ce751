"""The cost of a study: one row per length, and the rates behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from ...models import Shape
from ...results import finite
from ...words.numbers import about, data_size, many
from .rates import Rates

SCHEMA = {
    "length": pl.Int64,
    "windows": pl.Int64,
    "tokens": pl.Int64,  # of all windows
    "queries": pl.Int64,  # measured per window
    "pass_seconds": pl.Float64,  # of one window
    "measure_seconds": pl.Float64,
    "seconds_per_token": pl.Float64,
    "seconds_per_head": pl.Float64,
    "exponent": pl.Float64,  # a window takes as long as length ** exponent, around this length
    "seconds": pl.Float64,  # of all windows
    "activation_bytes": pl.Float64,  # at batch 1
    "measure_bytes": pl.Float64,
    "extra_bytes": pl.Float64,  # beyond the model, as a run announces it
    "bytes_per_token": pl.Float64,  # of those beyond the model that grow with the window
    "device_bytes": pl.Float64,  # with the weights, on every device of a copy of the model
}


@dataclass(frozen=True)
class Costs:
    """An estimate of the windows of a study; loading, tables and pages come on top.

    Attributes:
        model: its name, or its shape.
        table: one row per length.
        shape: sizes of the model.
        weights: bytes of its weights.
        devices: on how many devices one copy of the model lies.
        copies: how many copies work at the same time.
        rates: of the machine, and where they come from.
        settings: of the estimated study.
    """

    model: str
    table: pl.DataFrame
    shape: Shape
    weights: float
    devices: int
    copies: int
    rates: Rates
    settings: Mapping[str, Any]

    @property
    def seconds(self) -> float:
        """Of all windows of all lengths, shared by the copies."""
        return float(self.table["seconds"].sum())

    @property
    def megabytes(self) -> float:
        """Beyond the model."""
        return max(self.table["extra_bytes"].to_list(), default=0.0) / 1e6

    def formula(self) -> dict[str, list[float]]:
        """Seconds of a window of n tokens, q of which are measured in b blocks: a + b n + c n^2, d b + e q + f q n."""
        rates, shape = self.rates, self.shape
        heads = shape.layers * shape.heads
        passes = [shape.layers * rates.layer, shape.operations(1) / rates.matrix, shape.attention(1) / rates.attention]
        measures = [shape.layers * rates.measured_block, heads * rates.measured_query, heads * rates.measured_key]
        return {"pass": passes, "measures": measures if self.settings["study"] != "pass" else [0.0, 0.0, 0.0]}

    def __str__(self) -> str:
        windows, tokens = int(self.table["windows"].sum()), int(self.table["tokens"].sum())
        needs = f"about {about(self.seconds)} and {data_size(1e6 * self.megabytes)} on top of the model"
        line = f"{self.model}: {many(windows, 'window')}, {tokens:,} tokens: {needs} of {data_size(self.weights)}"
        return line if self.devices == self.copies == 1 else f"{line}, {self._where()}"

    def _where(self) -> str:
        """Such as "in 2 copies of 4 devices with 79.3 GB on each"."""
        each = data_size(max(self.table["device_bytes"].to_list(), default=0.0))
        copies = "one copy" if self.copies == 1 else f"{self.copies} copies"
        return f"in {copies} of {many(self.devices, 'device')} with {each} on each"

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints, as a dictionary."""
        return {
            "model": self.model,
            "estimate": True,
            "settings": dict(self.settings),
            "shape": asdict(self.shape),
            "weight_bytes": self.weights,
            "devices": self.devices,
            "copies": self.copies,
            "seconds": self.seconds,
            "megabytes": self.megabytes,
            "rates": asdict(self.rates),
            "formula": self.formula(),
            "lengths": self.table.to_dicts(),
        }

    def to_json(self) -> str:
        """What `--json` prints; NaN and infinity become null."""
        return json.dumps(finite(self.as_json()), indent=1, allow_nan=False)
