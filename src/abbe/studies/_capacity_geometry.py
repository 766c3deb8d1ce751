"""Separability beside capacity: does the geometry of the selected tokens say how many of them a layer needs?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import polars as pl

from ..results import Run
from ._capacity_parts import CORRELATION_SCHEMA
from ._capacity_ranks import rank_correlation
from ._capacity_settings import CapacitySettings
from ._lookup import Lookup

_MEASURE = "separability"


def shown_size(capacity: float, length: int) -> int:
    """The size at which separability stands beside a capacity: the same N, but at least 2 and at most half of L.

    One selected token is always separable, and beyond half of the keys few queries have as many left to compare with.
    """
    return max(2, min(math.ceil(capacity), length // 2))


def common_size(rows: Sequence[Mapping[str, Any]], settings: CapacitySettings) -> int:
    """One size for all layers: that of the whole model at the longest length and the smallest tau."""
    chosen = next(
        row
        for row in rows
        if row["layer"] is None
        and (row["length"], row["way"], row["tau"]) == (settings.lengths[-1], settings.layer_way, settings.taus[0])
    )
    return shown_size(chosen["capacity"], chosen["length"])


def sizes_for(rows: Sequence[Mapping[str, Any]], settings: CapacitySettings) -> list[int]:
    """All sizes that are needed, in rising order."""
    of_model = {shown_size(row["capacity"], row["length"]) for row in rows if row["layer"] is None}
    return sorted({*of_model, common_size(rows, settings)})


def with_separability(
    rows: Sequence[Mapping[str, Any]], run: Run, layer_numbers: Sequence[int], common: int
) -> list[dict[str, Any]]:
    """The rows with separability beside them. `layer_numbers`: those of the run, in the order of the model's layers."""
    table = Lookup(run)
    found = []
    for row in rows:
        if row["layer"] is None:
            size = shown_size(row["capacity"], row["length"])
            beside = _of_model(table, row["length"], size)
        else:
            size = common
            beside = _of_layer(table, row["length"], size, layer_numbers[row["layer"]])
        found.append({**row, "separability_n": size, **beside})
    return found


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
    """Over layers: ranks of capacity, at every tau and at its equal share, against ranks of separability."""
    of_layers = [row for row in rows if row["layer"] is not None]
    found = []
    for tau, allowed in dict.fromkeys((row["tau"], row["allowed"]) for row in of_layers):
        some = [row for row in of_layers if (row["tau"], row["allowed"]) == (tau, allowed)]
        known = [row["separability"] if row["separability"] is not None else math.nan for row in some]
        ranked = rank_correlation([row["capacity"] for row in some], known, settings.seed)
        where = (some[0]["way"], tau, allowed, some[0]["length"], some[0]["separability_n"])
        found.append((*where, ranked.value, ranked.p_value, ranked.exact, ranked.count))
    return pl.DataFrame(found, schema=CORRELATION_SCHEMA, orient="row")
