"""Separability beside capacity: does the geometry of the selected tokens predict how many a layer needs?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import polars as pl

from ...results import Run
from .._engine.lookup import Lookup
from .ranks import rank_correlation
from .result import CORRELATION_SCHEMA
from .settings import CapacitySettings

_MEASURE = "separability"
Cell = tuple[int, str]  # length and way


def shown_size(capacity: float, length: int) -> int:
    """The size of the sets whose separability is shown beside a capacity: N itself, within 2 and L/2.

    One selected token is always separable, and beyond half of the keys few queries have as many left to compare with.
    """
    return max(2, min(math.ceil(capacity), length // 2))


def common_sizes(rows: Sequence[Mapping[str, Any]], settings: CapacitySettings) -> dict[Cell, int]:
    """One size for all layers of a length and way: that of the whole model at the smallest tau."""
    return {
        (row["length"], row["way"]): shown_size(row["capacity"], row["length"])
        for row in rows
        if row["layer"] is None and row["tau"] == settings.taus[0]
    }


def sizes_for(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """All sizes in use, in rising order: those of the whole model; layers share some of them."""
    return sorted({shown_size(row["capacity"], row["length"]) for row in rows if row["layer"] is None})


def with_separability(
    rows: Sequence[Mapping[str, Any]], run: Run, layer_numbers: Sequence[int], common: Mapping[Cell, int]
) -> list[dict[str, Any]]:
    """The rows with separability added. `layer_numbers`: those of the run, in the order of the model's layers."""
    table = Lookup(run)
    completed = []
    for row in rows:
        if row["layer"] is None:
            size = shown_size(row["capacity"], row["length"])
            separability = _of_model(table, row["length"], size)
        else:
            size = common[row["length"], row["way"]]
            separability = _of_layer(table, row["length"], size, layer_numbers[row["layer"]])
        completed.append({**row, "separability_n": size, **separability})
    return completed


def _of_model(table: Lookup, length: int, size: int) -> dict[str, float | None]:
    cell = table.overall(_MEASURE, length, size)
    if cell is None:
        return {}
    ends = {"separability_low": cell.low, "separability_high": cell.high}
    return {"separability": cell.value, "control": cell.control} | ends


def _of_layer(table: Lookup, length: int, size: int, layer: int) -> dict[str, float | None]:
    """The mean over the heads of the layer."""
    cells = [cell for place, cell in table.heads(_MEASURE, length, size).items() if place[0] == layer]
    controls = [cell.control for cell in cells if cell.control is not None]
    return {
        "separability": fmean(cell.value for cell in cells) if cells else None,
        "control": fmean(controls) if controls else None,
    }


def correlation_table(rows: Sequence[Mapping[str, Any]], settings: CapacitySettings) -> pl.DataFrame:
    """Over layers: ranks of capacity against ranks of separability, for every way, length and allowed rise."""
    correlations, cells = [], defaultdict(list)
    for row in rows:
        if row["layer"] is not None:
            cells[row["way"], row["tau"], row["allowed"], row["length"]].append(row)
    for where, some in cells.items():
        separability = [row["separability"] if row["separability"] is not None else math.nan for row in some]
        ranked = rank_correlation([row["capacity"] for row in some], separability, settings.seed)
        size = some[0]["separability_n"]
        correlations.append((*where, size, ranked.value, ranked.p_value, ranked.exact, ranked.count))
    return pl.DataFrame(correlations, schema=CORRELATION_SCHEMA, orient="row")
