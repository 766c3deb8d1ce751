"""All heads over the length: largest weight, dispersion, separability, and how fast the largest weight fades."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from .._shared.panels import Look, renamed, rows_of, share_axis, tip
from .._shared.series import Axes, Legend, Spec, finished, length_axis, log_axis, look_of, panel, source, unchecked
from .._shared.theme import THEMES, ThemeName
from .charts_bars import counted, equal_bars
from .charts_table import (
    about_lines,
    interval_words,
    lengths_of,
    numbers_in,
    of_all_heads,
    of_heads,
    rows_for,
    shown_size,
    some_heads,
)

if TYPE_CHECKING:
    from ...results import Run

_DECAY = "decay_exponent"


@unchecked
def growth_chart(run: Run, theme: ThemeName, *, chosen: bool = False) -> Spec:
    """All heads; with `chosen`, the head in that dataset on top."""
    legend, size = _legend(run, theme, chosen), shown_size(run)
    panels = [
        _over_length(run, legend, "max_weight", "largest weight", "share of a query's weight"),
        _over_length(run, legend, "effective_tokens", "dispersion", "effective tokens", floor="effective_tokens_floor"),
        _over_length(run, legend, "separability", f"separability, N = {size}", "share in the ball", size),
        _decays(run, legend),
    ]
    question = "Do the heads give out as the text grows?"
    return finished(panels, question, about_lines(run), theme, filled=["chosen"] if chosen else [])


def _legend(run: Run, theme: ThemeName, chosen: bool) -> Legend:
    colours = THEMES[theme]
    _, words = some_heads(run.table)
    looks = {"heads": Look(words, colours.ramp[0], width=0.8)} | look_of(colours, interval_words(run), ", mean")
    present = ["heads", "mean", "limit", "floor", "control", *(["chosen"] if chosen else [])]
    return Legend.of(looks, present)


def _over_length(
    run: Run, legend: Legend, measure: str, title: str, axis: str, size: int | None = None, floor: str | None = None
) -> Spec | None:
    table = rows_for(run, measure, size)
    values = numbers_in(table)
    if not values:
        return None
    below = rows_for(run, floor) if floor else table.clear()
    y = share_axis("value", axis) if size else log_axis("value", axis, values + numbers_in(below))
    lengths = lengths_of(run)
    axes = Axes(length_axis(lengths), y, legend, alone=len(lengths) == 1)
    single, _ = some_heads(table)
    means = source(rows_of(of_all_heads(table).drop("model", "layer", "head", "n", "measure")))
    layers = [axes.thin(rows_of(single.select("layer", "head", "length", "value")), "heads")]
    for column in ("limit", "control"):
        layers += axes.limit(means, column, column)
    if floor:
        floors = source(rows_of(of_all_heads(below).select("length", "value")))
        layers += axes.limit(floors, "floor", "value")
    layers += [axes.band(means, "mean"), *axes.line(means, "mean")]
    if "chosen" in legend.looks:
        head = source("chosen", measure=measure, **({} if size is None else {"n": size}))
        layers += [axes.band(head, "chosen"), *axes.line(head, "chosen")]
    return panel(layers, title)


def _decays(run: Run, legend: Legend) -> Spec | None:
    """A histogram of decay exponents, their mean with its interval, and 1, the exponent of equal weights."""
    table = rows_for(run, _DECAY)
    values = numbers_in(of_heads(table), "value")
    if not values:
        return None
    bars, edges = equal_bars(values, around=(0.0, 1.0))
    scale = alt.Scale(domain=edges, nice=False)
    x = alt.X("value:Q", title="decay exponent: 0 holds, 1 fades as 1/L", scale=scale, axis=alt.Axis(tickCount=6))
    layers = [counted(bars, x, legend, "heads"), *_places(x, legend, table)]
    return panel(layers, "how fast the largest weight fades")


def _places(x: alt.X, legend: Legend, table: pl.DataFrame) -> list[alt.Chart]:
    """Vertical lines: the control, the mean in its interval, and the chosen head."""
    mean = rows_of(of_all_heads(table).select("value", "low", "high"))
    uniform = [{"value": value} for value in sorted(set(numbers_in(table, "control")))[:1]]
    drawn = [(source(uniform), "control"), (source(mean), "mean")]
    if "chosen" in legend.looks:
        drawn.append((source("chosen", measure=_DECAY), "chosen"))
    interval = [row for row in mean if row["low"] is not None and row["high"] is not None]
    strip = source(interval).mark_rect(opacity=0.25, color=legend.looks["mean"].colour)
    layers = [strip.encode(x=renamed(x, "low"), x2="high:Q")] if interval else []
    tips = [tip("shown", "series", "N"), tip("value", "decay exponent")]
    rules = [legend.called(chart, name).mark_rule() for chart, name in drawn]
    return layers + [rule.encode(x=x, tooltip=tips, **legend.style) for rule in rules]
