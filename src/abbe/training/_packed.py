"""The values of a step as its record holds them, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..results import packed, unpacked
from ._values import Grid, Measured, Values, of_model


def values_as_json(values: Values) -> dict[str, Any]:
    """Heads per layer, what holds for the whole model, and every measure of every head."""
    return {
        "layout": [len(heads) for heads in values["entropy"].value],
        "model": {name: float(f"{value:.6g}") for name, value in of_model(values).items()},
        "heads": {name: _packed(measured) for name, measured in values.items()},
    }


def _packed(measured: Measured) -> dict[str, Any]:
    grids = {"value": measured.value, "limit": measured.limit, "control": measured.control}
    return {name: packed(grid) for name, grid in grids.items() if grid is not None}


def values_from_json(record: Mapping[str, Any]) -> Values:
    """The values of a record that was read from a folder."""

    def grid(content: Any) -> Grid:
        return [[math.nan if x is None else x for x in heads] for heads in unpacked(content, record["layout"])]

    return {
        name: Measured(**{which: grid(content) for which, content in grids.items()})
        for name, grids in record["heads"].items()
    }
