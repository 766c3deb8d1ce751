"""One head: its curves over the size of the selected set and over the length, and the ball around the selected."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from .._shared.panels import places_axis, share_axis, tip
from .._shared.series import (
    Axes,
    Legend,
    Spec,
    finished,
    length_axis,
    linear_axis,
    log_axis,
    look_of,
    panel,
    source,
    unchecked,
)
from .._shared.theme import THEMES, Theme, ThemeName
from .charts_table import about_lines, interval_words, lengths_of, numbers_in, rows_for, shown_size

if TYPE_CHECKING:
    from ...results import Run

BALL = 380  # pixels of the square picture
_EDGE = 1.1
KINDS = ("selected, inside", "selected, outside", "unselected, nearer than a selected one", "unselected")
_DIVERGENCE = "selected_divergence"
_Scale = Callable[[str, str, Sequence[float]], alt.Y]


def _share(field: str, title: str, values: Sequence[float]) -> alt.Y:
    return share_axis(field, title)


@dataclass(frozen=True)
class _Shown:
    """A measure that gets a panel."""

    measure: str
    title: str
    axis: str
    scale: _Scale


_BY_SIZE = (
    _Shown("separability", "separability", "share of the selected in the ball", _share),
    _Shown("top_mass", "weight of the selected", "share of a query's weight", _share),
    _Shown("distance_per_token", "distance from the rest", "distance per unselected token", log_axis),
    _Shown(_DIVERGENCE, "weights within the selected", "divergence from equal (nats)", linear_axis),
)
_BY_LENGTH = (
    _Shown("effective_tokens", "dispersion", "effective tokens", log_axis),
    _Shown("max_weight", "largest weight", "share of a query's weight", log_axis),
    _Shown("entropy", "entropy", "entropy (nats)", linear_axis),
)
_BY_LENGTH_SIZED = (
    _Shown("separability", "separability", "share of the selected in the ball", _share),
    _Shown("top_mass", "weight of the selected", "share of a query's weight", _share),
)
_FLOOR = "effective_tokens_floor"


@unchecked
def sizes_chart(run: Run, theme: ThemeName) -> Spec:
    """Over N at one length, for the head in the dataset `rows`."""
    legend = Legend.of(look_of(THEMES[theme], interval_words(run)), ("value", "limit", "control"))
    sizes = numbers_in(run.table.filter(pl.col("n").is_not_null()), "n")
    x = places_axis("n", "selected tokens N", sizes)
    panels: list[Spec] = []
    for shown in _BY_SIZE:
        table = run.table.filter((pl.col("measure") == shown.measure) & pl.col("n").is_not_null())
        if values := numbers_in(table):
            if shown.measure == _DIVERGENCE:
                values.append(math.log(max(sizes)))
            axes = Axes(x, shown.scale("value", shown.axis, values), legend, alone=len(set(sizes)) == 1)
            panels.append(panel(_curves(axes, source("rows", measure=shown.measure), shown), shown.title))
    question = "Up to how many tokens does this head select?"
    return finished(panels, question, about_lines(run), theme, filled=["rows"])


@unchecked
def lengths_chart(run: Run, theme: ThemeName) -> Spec:
    """Over L, for the head in the dataset `rows`."""
    lengths, size = lengths_of(run), shown_size(run)
    legend = Legend.of(look_of(THEMES[theme], interval_words(run)), ("value", "limit", "floor", "control"))
    panels: list[Spec] = []
    for shown, n in [(shown, None) for shown in _BY_LENGTH] + [(shown, size) for shown in _BY_LENGTH_SIZED]:
        if not (values := numbers_in(rows_for(run, shown.measure, n))):
            continue
        if shown.measure == "effective_tokens":
            values += numbers_in(rows_for(run, _FLOOR))
        y = shown.scale("value", shown.axis, values)
        axes = Axes(length_axis(lengths), y, legend, alone=len(lengths) == 1)
        chosen = source("rows", measure=shown.measure, **({} if n is None else {"n": n}))
        layers = _curves(axes, chosen, shown)
        panels.append(panel(layers, shown.title if n is None else f"{shown.title}, N = {n}"))
    return finished(panels, "How does this head change as the text grows?", about_lines(run), theme, filled=["rows"])


def _curves(axes: Axes, chosen: alt.Chart, shown: _Shown) -> list[alt.Chart]:
    limits = chosen
    if shown.measure == _DIVERGENCE:  # all weight on one of N tokens: the table lacks this ceiling
        limits = chosen.transform_calculate(limit="log(datum.n)")
    layers = axes.limit(limits, "limit", "limit")
    layers += axes.limit(chosen, "control", "control")
    if shown.measure == "effective_tokens":
        layers += axes.limit(source("rows", measure=_FLOOR), "floor", "value")
    return [*layers, axes.band(chosen, "value"), *axes.line(chosen, "value")]


@unchecked
def ball_chart(run: Run, theme: ThemeName) -> Spec:
    """The datasets `points` and `circle` around the sum of the selected."""
    colours = THEMES[theme]
    x, y = _plain_axis(alt.X), _plain_axis(alt.Y)
    layers = [*_circle(x, y, colours), _points(x, y, colours), *_centre(x, y, colours)]
    picture = panel(layers, "", width=BALL, height=BALL)
    question = "Which of the selected tokens are separable?"
    return finished([picture], question, about_lines(run), theme, filled=["points", "circle"], columns=1)


def _plain_axis(channel: type[alt.X] | type[alt.Y]) -> alt.X | alt.Y:
    scale = alt.Scale(domain=[-_EDGE, _EDGE], nice=False, zero=False)
    return channel(f"{channel.__name__.lower()}:Q", title=None, scale=scale, axis=None)


def _circle(x: alt.X | alt.Y, y: alt.X | alt.Y, theme: Theme) -> list[alt.Chart]:
    circle = source("circle").mark_line(
        interpolate="linear-closed", fill=theme.selected, fillOpacity=0.08, stroke=theme.ink, strokeWidth=1.2,
        strokeDash=[7, 4], tooltip="the ball: as far as the nearest unselected token",
    )  # fmt: skip
    return [circle.encode(x=x, y=y, order="order:Q")]


def _points(x: alt.X | alt.Y, y: alt.X | alt.Y, theme: Theme) -> alt.Chart:
    hues = [theme.selected, theme.bad, theme.fourth, theme.control]
    legend = alt.Legend(symbolSize=90, columns=2)
    colour = alt.Color("kind:N", title=None, scale=alt.Scale(domain=list(KINDS), range=hues), legend=legend)
    shapes = alt.Scale(domain=list(KINDS), range=["circle", "diamond", "triangle-up", "square"])
    size = alt.Size("drawn_weight:Q", scale=alt.Scale(type="sqrt", domain=[0, 1], range=[40, 1200]), legend=None)
    tips = [tip("token", "token", "N"), tip("kind", "which is", "N"), tip("weight_words", "weight", "N")]
    tips.append(tip("distance", "distance from the centre"))
    shown = source("points").transform_calculate(
        drawn_weight="isValid(datum.weight) ? datum.weight : 0",  # unselected points have no weight
        weight_words="isValid(datum.weight) ? format(datum.weight, '.3~g') : 'less than any selected'",
    )
    marks = shown.mark_point(filled=True, opacity=0.85, stroke=theme.background, strokeWidth=0.6)
    shape = alt.Shape("kind:N", title=None, scale=shapes, legend=legend)
    drawn: alt.Chart = marks.encode(x=x, y=y, color=colour, shape=shape, size=size, tooltip=tips)
    return drawn


def _centre(x: alt.X | alt.Y, y: alt.X | alt.Y, theme: Theme) -> list[alt.Chart]:
    centre = source([{"x": 0, "y": 0}])
    cross = centre.mark_point(shape="M-1,0H1M0,-1V1", size=130, stroke=theme.ink, strokeWidth=1.6, opacity=1)
    words = centre.mark_text(text="s", align="left", dx=9, dy=-9, color=theme.ink, fontSize=11)
    return [cross.encode(x=x, y=y, tooltip=alt.value("the sum of the selected")), words.encode(x=x, y=y)]
