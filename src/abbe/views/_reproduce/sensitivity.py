"""Figure 4: how far the weights move for a small step of the logits, against the temperature."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from .._shared.panels import Look, Row, numbers, places_axis, rows_of, series_style, tip, value_axis
from .._shared.theme import Theme
from .panels import Panel, data, panel

if TYPE_CHECKING:
    from ...studies import Figure

HEIGHT = 190
STATISTICS = {
    "paper": "mean over queries, largest head (paper)",
    "mean": "mean over queries and heads",
    "max": "largest row",
}
CEILINGS = {"true": "true ceiling, at most min(1/(2T), √2/step)", "paper": "the paper's ceiling, min(1/(4T), √2)"}


def sensitivity_panels(figure: Figure, theme: Theme) -> list[Panel]:
    """A panel per step, the derivative last."""
    measured, ceilings = figure.tables["sensitivity"], figure.tables["ceilings"]
    steps = measured["step"].unique(maintain_order=True).to_list()
    steps.sort(key=lambda step: math.inf if step is None else step)
    edges = numbers(rows_of(measured), "value") + numbers(rows_of(ceilings), "true", "paper")
    x = places_axis("temperature", "temperature T", numbers(rows_of(measured), "temperature"), every=False)
    y = value_axis("value", "change per unit of step", [value for value in edges if value > 0])
    return [_one_step(_of_step(measured, step), _of_step(ceilings, step), step, x, y, theme) for step in steps]


def _of_step(table: pl.DataFrame, step: float | None) -> list[Row]:
    return rows_of(table.filter(pl.col("step").eq_missing(pl.lit(step, pl.Float64))))


def _one_step(
    measured: list[Row], ceilings: list[Row], step: float | None, x: alt.X, y: alt.Y, theme: Theme
) -> alt.LayerChart:
    looks = {
        "random": Look("random direction", theme.third),
        "true": Look(CEILINGS["true"], theme.proved),
        "pair": Look("second key past the first", theme.selected),
        "paper": Look(CEILINGS["paper"], theme.claim, (7, 4)),
        "worst": Look("worst direction", theme.fourth),
    }
    curves = [
        row | {"shown": looks[row["direction"]].label, "reading": STATISTICS.get(row["statistic"], row["statistic"])}
        for row in measured
    ]
    limits = [
        {"temperature": row["temperature"], "shown": shown, "value": row[column]}
        for row in ceilings
        for column, shown in CEILINGS.items()
    ]
    style = series_style(looks, looks)
    shapes = alt.Scale(domain=list(STATISTICS.values()), range=["circle", "square", "triangle-up"])
    shape = alt.Shape("reading:N", title=None, scale=shapes, legend=alt.Legend(orient="top", columns=3, offset=10))
    tips = [tip("shown", "direction", "N"), tip("reading", "statistic", "N"), tip("temperature", "T")]
    tips.append(tip("value", "change"))
    limit_tips = [tip("shown", "series", "N"), tip("temperature", "T"), tip("value", "ceiling")]
    layers = []
    if limits:
        layers.append(alt.Chart(data(limits)).mark_line().encode(x=x, y=y, tooltip=limit_tips, **style))
    chart, colour = alt.Chart(data(curves)), style["color"]
    points = chart.mark_point(filled=True, size=32, opacity=1)
    layers += [
        chart.mark_line(strokeWidth=1.3).encode(x=x, y=y, detail="reading:N", color=colour),
        points.encode(x=x, y=y, color=colour, shape=shape, tooltip=tips),
    ]
    return panel(layers, "derivative" if step is None else f"step {step:g}", height=HEIGHT)
