"""The needle test as a chart: accuracy by length and by depth, beside chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from .._shared.panels import Look, Row, places_axis, renamed, rows_of, series_style, share_axis, tip
from .._shared.series import Spec, finished, lines, panel, source, unchecked
from .._shared.theme import THEMES, Theme, ThemeName
from .charts import about_lines, looks_of
from .words import name_of

if TYPE_CHECKING:
    from ...studies import Comparison

QUESTION = "Does the model find the one right word in its prompt?"
_CHANCE = "chance"
_WORDS = {"key-value": "list of keys and values", "needle": "needle in the text"}


@unchecked
def needle_chart(comparison: Comparison, theme: ThemeName) -> Spec:
    """Two panels per kind of prompt: accuracy over the length and over the depth of the answer."""
    looks = looks_of(comparison, THEMES[theme])
    table = comparison.needle.filter(pl.col("kind").is_not_null())
    panels = []
    for kind, words in _WORDS.items():
        of_kind = table.filter(pl.col("kind") == kind)
        by_length = of_kind.filter(pl.col("length").is_not_null() & pl.col("depth").is_null())
        by_depth = of_kind.filter(pl.col("depth").is_not_null() & pl.col("length").is_null())
        panels += [
            _panel(by_length, "length", f"{words}, by length", looks, THEMES[theme]),
            _panel(by_depth, "depth", f"{words}, by depth", looks, THEMES[theme]),
        ]
    return finished(panels, QUESTION, about_lines(comparison), theme)


def _panel(table: pl.DataFrame, field: str, title: str, looks: Mapping[str, Look], theme: Theme) -> Spec | None:
    rows = rows_of(table)
    if not rows:
        return None
    places = [row[field] for row in rows]
    style = series_style({**looks, _CHANCE: Look(_CHANCE, theme.control, (2, 3), 1.6)}, [*looks, _CHANCE])
    x = _length_axis(places) if field == "length" else _depth_axis()
    y = share_axis("accuracy", "right answers")
    drawn = _moved(rows, field, looks)
    tips = [tip("full", "normalizer", "N"), tip("place", field), tip("accuracy"), tip("accuracy_low", "from"),
            tip("accuracy_high", "to"), tip("gain", "gain over baseline"), tip("chance"), tip("prompts"),
            tip("margin", "margin (logits)")]  # fmt: skip
    chance = [{field: row[field], "accuracy": row["chance"], "shown": _CHANCE} for row in _once(rows, field)]
    bars = source(drawn).mark_rule(strokeWidth=1.4, opacity=0.55)
    layers = [
        source(chance).mark_line().encode(x=x, y=y, **style),
        bars.encode(x=x, y=renamed(y, "accuracy_low"), y2="accuracy_high:Q", color=style["color"]),
        *lines(drawn, x, y, style, tips),
    ]
    return panel(layers, title)


def _length_axis(places: Sequence[float]) -> alt.X:
    return places_axis("length", "length of the prompt (tokens)", places)


def _depth_axis() -> alt.X:
    scale = alt.Scale(domain=[-0.08, 1.08], nice=False)
    axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".2~f")
    return alt.X("depth:Q", title="depth of the answer (0 first, 1 last)", scale=scale, axis=axis)


def _moved(rows: Sequence[Row], field: str, looks: Mapping[str, Look]) -> list[Row]:
    """Shifts each series a little, so that intervals at one place do not overlap."""
    order = list(looks)
    middle = (len(order) - 1) / 2
    moved = []
    for row in rows:
        aside = order.index(row["normalizer"]) - middle
        place = row[field] * 1.025**aside if field == "length" else row[field] + 0.012 * aside
        names = {"shown": looks[row["normalizer"]].label, "full": name_of(row["normalizer"])}
        moved.append(row | {field: place, "place": row[field]} | names)
    return moved


def _once(rows: Sequence[Row], field: str) -> list[Row]:
    """One row per place: chance is the same for all normalizers."""
    return list({row[field]: row for row in reversed(rows)}.values())
