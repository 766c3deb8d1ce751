"""Sensitivity against the temperature, with its true ceiling, and the temperature below which heads become fragile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from ...words.thresholds import FRAGILE
from .._shared.panels import Look, places_axis, rows_of
from .._shared.series import Axes, Legend, Spec, finished, log_axis, look_of, panel, source, unchecked
from .._shared.theme import THEMES, Theme, ThemeName
from .charts_bars import counted, log_bars
from .charts_table import about_lines, interval_words, lengths_of, numbers_in, of_all_heads, of_heads, some_heads

if TYPE_CHECKING:
    from ...results import Run

_PREFIX = "sensitivity_worst_"
_DECADES = 3.0
_FRAGILE, _UNREACHED = "fragile", "unreached"
_SINGLE = "p95"  # which part decides whether a head is fragile
PARTS = {"mean": "mean", "p95": "95th percentile", "max": "largest query"}
_DASHES: dict[str, tuple[int, ...]] = {"mean": (1, 0), "p95": (6, 2), "max": (2, 2)}


@unchecked
def gradient_chart(run: Run, floors: pl.DataFrame, theme: ThemeName, *, chosen: bool = False) -> Spec:
    """All heads at the longest length; with `chosen`, the head in that dataset on top."""
    table = sensitivities(run)
    legend = _legend(run, table, floors, THEMES[theme], chosen)
    temperatures = numbers_in(table, "temperature")
    panels: list[Spec] = []
    if temperatures:
        x = places_axis("temperature", "temperature T", temperatures)
        values = [*numbers_in(table, "value", "limit"), FRAGILE]
        y = log_axis("value", "largest change of the weights, per logit", values, _DECADES)
        axes = Axes(x, y, legend, alone=len(set(temperatures)) == 1)
        panels.append(panel(_curves(axes, table), f"sensitivity, worst direction, L = {lengths_of(run)[-1]}"))
    panels += _floors(floors, temperatures, legend)
    question = "At which temperature do the weights become fragile?"
    return finished(panels, question, about_lines(run), theme, filled=["chosen"] if chosen else [])


def _legend(run: Run, table: pl.DataFrame, floors: pl.DataFrame, theme: Theme, chosen: bool) -> Legend:
    _, words = some_heads(table)
    looks = {
        "heads": Look(f"{words}, {PARTS[_SINGLE]}", theme.ramp[0], width=0.8),
        "mean": look_of(theme, interval_words(run))["mean"],
        "max": Look("largest query of all heads", theme.bad, (2, 2)),
        "limit": Look("ceiling that is proved, 1/(2T) for softmax", theme.proved, (7, 4), 1.5),
        _FRAGILE: Look("fragile: the 95th percentile lies above", theme.third, (7, 3, 2, 3), 1.5),
        _UNREACHED: Look("not fragile at the lowest temperature", theme.control),
    } | {
        f"chosen {part}": Look(f"the chosen head: {name}", theme.fourth, _DASHES[part]) for part, name in PARTS.items()
    }
    absent = set() if chosen else {f"chosen {part}" for part in PARTS}
    if not _fragile(floors)[1]:
        absent.add(_UNREACHED)
    return Legend.of(looks, looks.keys() - absent)


def sensitivities(run: Run) -> pl.DataFrame:
    """Worst-direction sensitivities at the longest length, by temperature and part (mean, p95, max)."""
    rows = run.table.filter(
        pl.col("measure").str.starts_with(_PREFIX) & pl.col("value").is_finite()
        & (pl.col("length").max() == pl.col("length"))
    )  # fmt: skip
    name = pl.col("measure").str.strip_prefix(_PREFIX).str.split("@T=")
    return (
        rows.with_columns(
            part=name.list.get(0),
            temperature=name.list.get(1, null_on_oob=True).cast(pl.Float64, strict=False).fill_null(1.0),
        )
        .filter(pl.col("part").is_in(list(PARTS)))
        .sort("temperature", maintain_order=True)
        .select("layer", "head", "part", "temperature", "value", "low", "high", "limit")
    )


def _curves(axes: Axes, table: pl.DataFrame) -> list[alt.Chart]:
    means, largest = table.filter(pl.col("part") == "mean"), table.filter(pl.col("part") == "max")
    single, _ = some_heads(table.filter(pl.col("part") == _SINGLE))
    everywhere = source(rows_of(of_all_heads(means).drop("layer", "head", "part")))
    tops = largest.group_by("temperature").agg(pl.col("value").max()).sort("temperature")
    ceilings = table.group_by("temperature").agg(pl.col("limit").max()).drop_nulls().sort("temperature")
    layers = [axes.thin(rows_of(single.select("layer", "head", "temperature", "value")), "heads")]
    layers += axes.limit(source(rows_of(ceilings)), "limit", "limit")
    layers += axes.limit(source(rows_of(tops)), "max", "value")
    layers += [axes.band(everywhere, "mean"), *axes.line(everywhere, "mean")]
    for part in PARTS:
        if f"chosen {part}" in axes.legend.looks:
            layers += axes.line(source("chosen", part=part), f"chosen {part}")
    return [*layers, *_threshold(axes)]


def _threshold(axes: Axes) -> list[alt.Chart]:
    """Above this line a head counts as fragile."""
    look = axes.legend.looks[_FRAGILE]
    chart = axes.legend.called(source([{"value": FRAGILE}]), _FRAGILE)
    return [chart.mark_rule().encode(y=axes.y, tooltip=alt.value(look.label), **axes.legend.style)]


def _floors(floors: pl.DataFrame, temperatures: Sequence[float], legend: Legend) -> list[Spec]:
    """How many heads become fragile at which temperature; heads that never did within the range are at the left."""
    present, unreached = _fragile(floors)
    if not present and not unreached:
        return []
    bars, (low, high), step = log_bars(present, temperatures)
    if unreached:
        left = {"value": low / step**1.5, "end": low / step**0.5, "heads": unreached, "series": _UNREACHED}
        bars = [left, *bars]
    x = places_axis("value", "temperature T", temperatures or [low, high])
    x["scale"]["domain"] = [low / step**2, high * step**0.5]
    return [panel([counted(bars, x, legend, "heads")], "temperature below which a head is fragile")]


def _fragile(floors: pl.DataFrame) -> tuple[list[float], int]:
    """The temperatures, and the number of heads without one."""
    if floors.is_empty() or not {"layer", "head", "floor"} <= set(floors.columns):
        return [], 0
    temperatures = of_heads(floors)["floor"].cast(pl.Float64)
    present = temperatures.filter(temperatures.is_finite() & (temperatures > 0)).to_list()
    return present, len(temperatures) - len(present)
