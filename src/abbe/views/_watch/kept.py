"""The part of a training run that a page holds: all steps of a short run, a selection of a long one.

A step is kept whole, so curves and map show measured values, never means over steps. Kept are the first and the last
step, steps with alerts, and others evenly between. To hide nothing, each kept step carries the least and the largest
value of any head over all steps since the previous kept one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from .answer import grid, reduced

if TYPE_CHECKING:
    from ...results import Training

BUDGET = 1_000_000  # numbers on a page: below 5 MB even if they are random
_LEAST, _MOST = 12, 600  # steps; more than a page has pixels are invisible
_COLUMNS = ("value", "limit", "control")
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Kept:
    """What the page draws.

    Attributes:
        steps: the kept steps.
        places: layer and head of every head.
        measures: names.
        heads: a row per kept step and head, in this order; a column per measure, limit and control.
        model: a row per kept step: losses, learning rate, and mean, least and largest of every measure.
        read: how many steps were read.
    """

    steps: list[int]
    places: list[tuple[int, int]]
    measures: list[str]
    heads: pl.DataFrame
    model: pl.DataFrame
    read: int


def kept_of(training: Training, most: int | None = None) -> Kept:
    """At most `most` steps; by default as many as the page has room for."""
    records = training.records
    measures = list(dict.fromkeys(name for record in records for name in record["heads"]))
    parts = [(name, part) for name in measures for part in _COLUMNS if any(part in _of(r, name) for r in records)]
    places = _places(records)
    room = BUDGET // max(1, len(parts) * len(places))
    at = kept_places([bool(record["alerts"]) for record in records], most or min(_MOST, max(_LEAST, room)))
    kept = [records[place] for place in at]
    columns = {column_name(name, part): _column(kept, name, part, places) for name, part in parts}
    return Kept(
        [record["step"] for record in kept], places, measures, _floats(columns), _floats(_model(records, at, measures)),
        len(records),
    )  # fmt: skip


def column_name(measure: str, part: str) -> str:
    return measure if part == "value" else f"{measure} {part}"


def kept_places(alerted: Sequence[bool], most: int) -> list[int]:
    """Places of the first and the last record, those with alerts (a sample if very many), and others evenly between."""
    if len(alerted) <= most:
        return list(range(len(alerted)))
    events = [place for place, alert in enumerate(alerted) if alert]
    chosen = {events[i] for i in _evenly(len(events), most // 2)} | {0, len(alerted) - 1}
    return sorted(chosen | set(_evenly(len(alerted), most - len(chosen))))


def _evenly(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(1, most - 1)) for i in range(most)})


def _of(record: Record, measure: str) -> Mapping[str, Any]:
    parts: Mapping[str, Any] = record["heads"].get(measure) or {}
    return parts


def _places(records: Iterable[Record]) -> list[tuple[int, int]]:
    layouts = {tuple(record["layout"]) for record in records}
    return sorted({(layer, head) for layout in layouts for layer, heads in enumerate(layout) for head in range(heads)})


def _column(records: Sequence[Record], name: str, part: str, places: Sequence[tuple[int, int]]) -> list[float | None]:
    values: list[float | None] = []
    for record in records:
        layers, layout = grid(_of(record, name).get(part), record["layout"]), record["layout"]
        values += [
            layers[layer][head] if layer < len(layout) and head < layout[layer] else None for layer, head in places
        ]
    return values


def _model(records: Sequence[Record], at: Sequence[int], measures: Sequence[str]) -> dict[str, list[float | None]]:
    """Values at the kept steps; least and largest over all steps since the previous kept one."""
    plain = ("loss", "loss_mean", "learning_rate")
    columns: dict[str, list[float | None]] = {name: [records[place].get(name) for place in at] for name in plain}
    for name in measures:
        columns[f"{name} mean"] = [records[place]["model"].get(reduced(name, "mean")) for place in at]
    stretches = [range(before + 1, place + 1) for before, place in zip([-1, *at], at, strict=False)]
    for name in measures:
        for how, end, choose in (("low", "min", min), ("high", "max", max)):
            key = reduced(name, end)
            columns[f"{name} {how}"] = [
                _extreme(choose, (records[i]["model"].get(key) for i in stretch)) for stretch in stretches
            ]
    for how, choose in (("low", min), ("high", max)):
        columns[f"loss {how}"] = [_extreme(choose, (records[i].get("loss") for i in stretch)) for stretch in stretches]
    return columns


def _extreme(choose: Any, values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None and math.isfinite(value)]
    return choose(present) if present else None


def _floats(columns: Mapping[str, Sequence[float | None]]) -> pl.DataFrame:
    return pl.DataFrame({name: pl.Series(values, dtype=pl.Float64, strict=False) for name, values in columns.items()})
