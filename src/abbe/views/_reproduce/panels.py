"""What only the figures of the paper need: panels of altair charts, lines with intervals, kinds of vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from .._shared.panels import HEIGHT, INTERVAL_TIPS, WIDTH, Row, is_log, numbers, renamed, rows_of

Panel = alt.LayerChart | alt.ConcatChart
VECTOR_NAMES = {"embedding": "token embeddings", "value": "value vectors", "hidden": "hidden states"}


def by_vectors(table: pl.DataFrame) -> dict[str, list[Row]]:
    """Rows by kind of vectors, named as in titles, in the order of the table."""
    return {
        VECTOR_NAMES.get(kind, f"{kind} vectors"): rows_of(table.filter(pl.col("vectors") == kind))
        for kind in table["vectors"].unique(maintain_order=True)
    }


def panel(layers: Sequence[alt.Chart], title: str, width: int = WIDTH, height: int = HEIGHT) -> alt.LayerChart:
    return alt.LayerChart(layer=list(layers), width=width, height=height, title=title)


def data(rows: Sequence[Row]) -> alt.InlineData:
    return alt.InlineData(values=list(rows))


def with_intervals(
    rows: Sequence[Row], x: alt.X, y: alt.Y, tips: Sequence[alt.Tooltip], style: Mapping[str, Any]
) -> list[alt.Chart]:
    """Lines with a point at every measured place, in front of their intervals; `style`: encodings of the series."""
    chart, tooltip = alt.Chart(data(rows)), [*tips, *INTERVAL_TIPS]
    points = chart.mark_point(filled=True, size=34, opacity=1)
    return [
        *_bands(rows, x, y, style["color"]),
        chart.mark_line().encode(x=x, y=y, tooltip=tooltip, **style),
        points.encode(x=x, y=y, tooltip=tooltip, color=style["color"]),
    ]


def _bands(rows: Sequence[Row], x: alt.X, y: alt.Y, colour: alt.Color) -> list[alt.Chart]:
    """A band from low to high, or a bar if a band would have no width; rows without an interval get none."""
    whole = [row for row in rows if row.get("low") is not None and row.get("high") is not None]
    if not whole:
        return []
    floor = min((value for value in numbers(rows, "value", "low") if value > 0), default=0.0)
    if is_log(numbers(rows, "value")):
        whole = [row | {"low": max(row["low"], floor)} for row in whole]
    field = str(x.shorthand).split(":")[0]
    chart = alt.Chart(data(whole))
    flat = len({row[field] for row in whole}) == 1
    marks = chart.mark_rule(strokeWidth=4, opacity=0.35) if flat else chart.mark_area(opacity=0.2)
    return [marks.encode(x=x, y=renamed(y, "low"), y2=alt.Y2("high:Q"), color=colour)]
