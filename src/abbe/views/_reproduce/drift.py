"""Drift: how far the weights inside a set are from uniform, against its size and against the length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from .._shared.panels import Look, Row, numbers, places_axis, rows_of, series_style, tip, value_axis
from .._shared.theme import Theme
from .panels import Panel, data, panel, with_intervals

if TYPE_CHECKING:
    from ...studies import Figure

CEILING = "all weight on one token, ln N"


def drift_panels(figure: Figure, theme: Theme) -> list[Panel]:
    """Against N at the longest length, then against L at one size."""
    length, size = figure.about.get("length"), figure.about.get("size", 5)
    by_size = "by size" if length is None else f"by size, L = {length}"
    return [
        _curves(figure.tables["by_size"], "n", "tokens in the set N", by_size, theme),
        _curves(figure.tables["by_length"], "length", "length L (tokens)", f"by length, N = {size}", theme),
    ]


def _curves(table: pl.DataFrame, axis: str, axis_title: str, title: str, theme: Theme) -> alt.LayerChart:
    looks = {
        "selected": Look("selected: N largest weights", theme.selected),
        "random": Look("random sets of N", theme.control, (2, 3)),
        "ceiling": Look(CEILING, theme.proved, (7, 4)),
    }
    rows = [row | {"shown": looks[row["series"]].label} for row in rows_of(table) if row["series"] in looks]
    limits = _ceilings(rows, axis)
    x = places_axis(axis, axis_title, numbers(rows, axis))
    y = value_axis("value", "divergence from uniform (nats)", numbers([*rows, *limits], "value", "high"), log=False)
    style = series_style(looks, looks)
    named, layers = tip("shown", "series", "N"), []
    tips = [named, tip(axis, axis_title), tip("value", "divergence"), tip("share", "share of ln N")]
    if limits:
        limit = alt.Chart(data(limits)).mark_line()
        layers.append(limit.encode(x=x, y=y, tooltip=[named, tip(axis), tip("value")], **style))
    return panel([*layers, *with_intervals(rows, x, y, tips, style)], title)


def _ceilings(rows: list[Row], axis: str) -> list[Row]:
    """ln N, from a value and its share of it."""
    ceilings = {row[axis]: row["value"] / row["share"] for row in rows if row["value"] and row["share"]}
    return [{axis: place, "value": round(value, 5), "shown": CEILING} for place, value in sorted(ceilings.items())]
