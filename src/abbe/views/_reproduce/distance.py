"""Figures 2a, 2b and 2c: the distance of the selected from the rest, and up to which N it differs from random sets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import altair as alt

from ...words.paper import PAPER_CRITICAL_SHARE
from .._shared.panels import (
    INTERVAL_TIPS,
    Look,
    Row,
    numbers,
    places_axis,
    renamed,
    series_style,
    share_axis,
    tip,
    value_axis,
)
from .._shared.theme import Theme
from .panels import Panel, by_vectors, data, panel, with_intervals

if TYPE_CHECKING:
    from ...studies import Figure

AXES = {"length": "length L (tokens)", "n": "selected tokens N"}


def distance_panels(figure: Figure, theme: Theme) -> list[Panel]:
    """One panel per kind of vectors, against L (2a) or N (2b)."""
    axis = "length" if figure.name == "2a" else "n"
    return [_distances(rows, axis, name, theme) for name, rows in by_vectors(figure.tables["distance"]).items()]


def _distances(rows: list[Row], axis: str, title: str, theme: Theme) -> alt.LayerChart:
    looks = {
        "selected": Look("selected: N largest weights", theme.selected),
        "bound": Look("bound of Theorem 1 for the selected", theme.claim, (7, 4)),
        "random": Look("random sets of N", theme.control, (2, 3)),
        "range": Look("proved range of the mean over random sets", theme.control_pale, width=9),
    }
    curves = [row | {"shown": looks[row["series"]].label} for row in rows if row["series"] in looks]
    area = _proved_range(rows, axis, looks["range"].label)
    x = places_axis(axis, AXES[axis], numbers(rows, axis))
    y = value_axis("value", "distance to the selected", numbers(rows, "value", "low", "high"))
    style = series_style(looks, [row["series"] for row in curves] + ["range"] * bool(area))
    named = [tip("shown", "series", "N"), tip(axis, AXES[axis])]
    layers = []
    if area:
        chart = alt.Chart(data(area))
        marks = chart.mark_bar(width=14) if len(area) == 1 else chart.mark_area()
        tips = [*named, tip("value", "from"), tip("top", "to")]
        layers.append(marks.encode(x=x, y=y, y2="top:Q", color=style["color"], tooltip=tips))
    layers += with_intervals(curves, x, y, [*named, tip("value", "distance")], style)
    return panel(layers, title)


def _proved_range(rows: list[Row], axis: str, shown: str) -> list[Row]:
    low = {row[axis]: row["value"] for row in rows if row["series"] == "expected low"}
    high = {row[axis]: row["value"] for row in rows if row["series"] == "expected high"}
    return [
        {axis: place, "value": low[place], "top": high[place], "shown": shown}
        for place in low
        if low[place] is not None and high.get(place) is not None
    ]


def critical_panels(figure: Figure, theme: Theme) -> list[Panel]:
    """The critical N against L, then its test statistic against N; one row each for several kinds of vectors."""
    critical, tests = by_vectors(figure.tables["critical"]), by_vectors(figure.tables["tests"])
    above = [_critical(rows, f"critical N, {name}", theme) for name, rows in critical.items()]
    below = [_tests(tests.get(name, []), f"test by heads, {name}", theme) for name in critical]
    if len(critical) == 1:
        return [*above, *below]
    return [alt.concat(*row, columns=2) for row in (above, below)]


def _critical(rows: list[Row], title: str, theme: Theme) -> alt.LayerChart:
    lengths = sorted(set(numbers(rows, "length")))
    ends = [lengths[0], lengths[-1]] if len(lengths) > 1 else [lengths[0] / 1.5, lengths[0] * 1.5]
    paper = [{"length": length, "critical_n": PAPER_CRITICAL_SHARE * length} for length in ends]
    middle = [
        {"length": math.sqrt(ends[0] * ends[1]), "critical_n": PAPER_CRITICAL_SHARE * math.sqrt(ends[0] * ends[1])}
    ]
    levels = sorted(set(numbers(rows, "level")))
    labels = [f"test at level {level:g}" for level in levels]
    arrows = [2.4 * value for value in numbers((row for row in rows if row["critical_n"] is None), "largest_n")]
    x = places_axis("length", AXES["length"], lengths)
    values = numbers(rows, "critical_n", "low", "high") + numbers(paper, "critical_n") + arrows
    y = value_axis("critical_n", "critical N", [value for value in values if value > 0])
    colours = alt.Scale(domain=labels, range=[theme.selected, theme.fourth][: len(labels)])
    shapes = alt.Scale(domain=labels, range=["circle", "square"][: len(labels)])
    styles = {
        "color": alt.Color("test:N", title=None, scale=colours),
        "shape": alt.Shape("test:N", title=None, scale=shapes),
    }
    line = alt.Chart(data(paper)).mark_line(color=theme.claim, strokeDash=[7, 4], strokeWidth=2)
    name = alt.Chart(data(middle)).mark_text(
        text="paper: N = 0.06 L", color=theme.claim, align="left", baseline="top", dx=2, dy=8, fontSize=11
    )
    layers = [line.encode(x=x, y=y), name.encode(x=x, y=y)]
    for place, (level, label) in enumerate(zip(levels, labels, strict=True)):
        shift = 7 * (place - (len(levels) - 1) / 2)
        layers += _of_level([row | {"test": label} for row in rows if row["level"] == level], x, y, styles, shift)
    above = {row["length"]: row["largest_n"] for row in rows if row["critical_n"] is None}
    if above:
        beyond = [{"length": length, "largest_n": n, "label": f"> {n:g}"} for length, n in above.items()]
        text = alt.Chart(data(beyond)).mark_text(baseline="bottom", dx=4, dy=-20, fontSize=11, color=theme.ink)
        layers.append(text.encode(x=x, y=renamed(y, "largest_n"), text="label:N"))
    return panel(layers, title)


def _of_level(rows: list[Row], x: alt.X, y: alt.Y, styles: dict[str, Any], shift: float) -> list[alt.Chart]:
    """Points with their intervals; an arrow from the largest N tried if every test rejects."""
    tips = [tip("test", "test", "N"), tip("length", AXES["length"]), tip("critical_n", "critical N"), *INTERVAL_TIPS]
    tips.append(tip("largest_n", "largest N tried"))
    known = [row for row in rows if row["critical_n"] is not None]
    above = [row for row in rows if row["critical_n"] is None]
    bars = [row for row in known if (row["low"] or 0) > 0 and row["high"] is not None]
    colour = styles["color"]
    layers = []
    if bars:
        rule = alt.Chart(data(bars)).mark_rule(strokeWidth=1.5, opacity=0.7, xOffset=shift)
        layers.append(rule.encode(x=x, y=renamed(y, "low"), y2="high:Q", color=colour))
    if known:
        dots = alt.Chart(data(known)).mark_point(filled=True, size=52, opacity=1, xOffset=shift)
        layers.append(dots.encode(x=x, y=y, tooltip=tips, **styles))
    if above:
        place = renamed(y, "largest_n")
        arrow = alt.Chart(data(above)).mark_point(
            shape="arrow", size=260, filled=True, opacity=1, xOffset=shift, yOffset=-8
        )
        layers.append(arrow.encode(x=x, y=place, color=colour, tooltip=tips))
    return layers


def _tests(rows: list[Row], title: str, theme: Theme) -> alt.LayerChart:
    lengths = sorted(set(numbers(rows, "length")))
    x = places_axis("n", AXES["n"], numbers(rows, "n"))
    y = share_axis("statistic", "Kolmogorov–Smirnov D")
    shapes = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]
    marks = alt.Scale(domain=lengths, range=[shapes[i % len(shapes)] for i in range(len(lengths))])
    shades = alt.Scale(domain=lengths, range=theme.shades(len(lengths)))
    legend = alt.Legend(columns=6, title="L", titleOrient="left", titleColor=theme.ink)
    colour = alt.Color("length:N", title="L", scale=shades, legend=legend)
    shape = alt.Shape("length:N", title="L", scale=marks, legend=legend)
    tips = [tip("length", "L"), tip("n", "N"), tip("statistic", "D"), tip("p_value", "p")]
    chart = alt.Chart(data(rows))
    points = chart.mark_point(filled=True, size=44, opacity=1)
    layers = [
        chart.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=colour),
        points.encode(x=x, y=y, color=colour, shape=shape, tooltip=tips),
    ]
    return panel(layers, title)
