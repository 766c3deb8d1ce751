"""The kit of all charts: axes, series under one legend, tooltips, panels, and names beside points.

A chart with a dataset that is filled later has scales fixed beforehand, from the table of all heads, so that heads can
be compared and an empty dataset causes no warning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import altair as alt
import numpy as np
from altair.utils.schemapi import debug_mode

from .theme import THEMES, Theme, ThemeName

if TYPE_CHECKING:
    import polars as pl

WIDTH, HEIGHT = 268, 216  # two panels fill the text width of a paper
Row = dict[str, Any]
Axis = TypeVar("Axis", alt.X, alt.Y)
_DIGITS = 6


def rows_of(table: pl.DataFrame) -> list[Row]:
    """Rows for a chart: six digits, null for non-finite numbers."""
    return [{name: _tidy(value) for name, value in row.items()} for row in table.iter_rows(named=True)]


def _tidy(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def numbers(rows: Iterable[Row], *fields: str) -> list[float]:
    """All values of these columns that are not null."""
    return [row[name] for row in rows for name in fields if row.get(name) is not None]


def places_axis(field: str, title: str, places: Iterable[float], *, every: bool = True) -> alt.X:
    """A logarithmic axis with a tick at every place that was measured, or at round numbers."""
    marks = sorted(set(places)) or [1]
    low, high = _around(marks[0], marks[-1], 1.12)
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    ticks = marks if every else round_ticks(low, high * 1.3)
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(values=ticks, format="~g", labelSeparation=3))


def value_axis(field: str, title: str, values: Sequence[float], *, log: bool = True) -> alt.Y:
    """Logarithmic if every value is positive; else linear, from zero. The uppermost tick stays below the edge."""
    if not (log and is_log(values)):
        edges = [1.08 * min((0.0, *values)), 1.08 * max(values, default=1.0) or 1.0]
        scale = alt.Scale(domain=edges, nice=False)
        return alt.Y(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6))
    low, high = _around(min(values), max(values), 1.25)
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return alt.Y(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(values=round_ticks(low, high), format="~g"))


def is_log(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0


def _around(low: float, high: float, factor: float) -> list[float]:
    return [low / factor, high * factor] if high > low else [low / 2, high * 2]


def round_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ...; over more than three decades powers of ten, about seven at most; none at the very top."""
    decades = math.log10(high / low)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if decades <= 3 else (1,)
    every = max(1, math.ceil(decades / 7))
    ticks = [float(f"{step}e{power}") for power in range(first, last + 1, every) for step in steps]
    return [tick for tick in ticks if low <= tick <= high * 10 ** (-0.03 * decades)]


def renamed(axis: Axis, field: str) -> Axis:
    """The same axis for another column."""
    other: Axis = axis.copy()
    other.shorthand = f"{field}:Q"
    return other


def tip(field: str, title: str | None = None, kind: str = "Q") -> alt.Tooltip:
    form: dict[str, Any] = {"format": ".4~g"} if kind == "Q" else {}
    return alt.Tooltip(f"{field}:{kind}", title=title or field, **form)


INTERVAL_TIPS = (tip("low", "interval from"), tip("high", "to"))


def share_axis(field: str, title: str, values: Sequence[float] = ()) -> alt.Y:
    """A linear axis from 0 to 1, whatever the values."""
    return alt.Y(f"{field}:Q", title=title, scale=alt.Scale(domain=[0, 1.04], nice=False), axis=alt.Axis(tickCount=6))


@dataclass(frozen=True)
class Look:
    """How a series looks; an area is shown in the legend as a broad line."""

    label: str
    colour: str
    dash: tuple[int, ...] = (1, 0)
    width: float = 2


def series_style(looks: Mapping[str, Look], present: Collection[str]) -> dict[str, Any]:
    """Colour, dash and width by the column `shown`, in one legend of the series present."""
    shown = [look for name, look in looks.items() if name in present]
    legend = alt.Legend(symbolType="stroke", symbolSize=420)

    def channel(kind: Any, field: str, values: list[Any]) -> Any:
        scale = alt.Scale(type="ordinal", domain=[look.label for look in shown], range=values)
        return kind(field, title=None, scale=scale, legend=legend)

    return {  # Vega-Lite wants an order for widths, and none for hues
        "color": channel(alt.Color, "shown:N", [look.colour for look in shown]),
        "strokeDash": channel(alt.StrokeDash, "shown:N", [list(look.dash) for look in shown]),
        "strokeWidth": channel(alt.StrokeWidth, "shown:O", [look.width for look in shown]),
    }


Spec = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")
_DECADES = 5.0  # of a logarithmic axis: smaller values are drawn at its edge


# -- Axes -------------------------------------------------------------------------------------------------------------


def log_axis(field: str, title: str, values: Sequence[float], decades: float = _DECADES) -> alt.Y:
    """A logarithmic axis over the positive values; 0 and values far below the others are drawn at its lower edge."""
    positive = [value for value in values if value > 0]
    if not positive:
        return value_axis(field, title, [0.0, 1.0], log=False)
    high = max(positive)
    axis = value_axis(field, title, [max(min(positive), high / 10**decades), high])
    axis["scale"]["clamp"] = True
    return axis


def linear_axis(field: str, title: str, values: Sequence[float]) -> alt.Y:
    return value_axis(field, title, [*values, 0.0] if values else [0.0, 1.0], log=False)


def length_axis(lengths: Sequence[int]) -> alt.X:
    return places_axis("length", "length L (tokens)", lengths)


# -- Series -----------------------------------------------------------------------------------------------------------


def source(rows: Sequence[Row] | str, **equal: Any) -> alt.Chart:
    """A chart of these rows, or of the dataset of that name; `equal` keeps rows with this value in that column."""
    if isinstance(rows, str):
        chart = alt.Chart(alt.NamedData(name=rows))
    else:
        chart = alt.Chart(alt.InlineData(values=tuple(rows)))  # altair checks every row of a list against its schema
    for name, value in equal.items():
        chart = chart.transform_filter(alt.FieldEqualPredicate(field=name, equal=value))
    return chart


def lines(
    rows: Sequence[Row], x: alt.X, y: alt.Y, style: Mapping[str, Any], tips: Sequence[alt.Tooltip]
) -> list[alt.Chart]:
    """A line per series, with a point at every value."""
    chart = source(rows)
    points = chart.mark_point(filled=True, size=34, opacity=1)
    return [chart.mark_line().encode(x, y, tooltip=tips, **style), points.encode(x, y, style["color"], tooltip=tips)]


@dataclass(frozen=True)
class Legend:
    """How series look, by name, and the encodings of those present."""

    looks: Mapping[str, Look]
    style: Mapping[str, Any]

    @classmethod
    def of(cls, looks: Mapping[str, Look], present: Collection[str]) -> Legend:
        return cls({name: look for name, look in looks.items() if name in present}, series_style(looks, present))

    def called(self, chart: alt.Chart, name: str) -> alt.Chart:
        return chart.transform_calculate(shown=json.dumps(self.looks[name].label))


@dataclass(frozen=True)
class Axes:
    """Two axes and the legend; series are drawn by their names in the legend.

    A line or a band over a single place would be invisible: `alone` draws points and bars instead.
    """

    x: alt.X
    y: alt.Y
    legend: Legend
    alone: bool = False

    def band(self, chart: alt.Chart, name: str) -> alt.Chart:
        """From low to high."""
        colour = self.legend.looks[name].colour
        whole = chart.transform_filter("isValid(datum.low) && isValid(datum.high)")
        bars = whole.mark_rule(color=colour, opacity=0.4, strokeWidth=4)
        marks = bars if self.alone else whole.mark_area(color=colour, opacity=0.22)
        # Explicit channels: altair takes 4 ms to make one from plain text, as it hashes its whole schema.
        drawn: alt.Chart = marks.encode(x=self.x, y=renamed(self.y, "low"), y2=alt.Y2("high:Q"))
        return drawn

    def line(self, chart: alt.Chart, name: str) -> list[alt.Chart]:
        """The measured values, with a point at every place."""
        named = _in_words(self.legend.called(chart, name))
        tips = [tip("shown", "series", "N"), _tip_of(self.x), tip("value"), *_WORD_TIPS]
        dots = named.mark_point(filled=True, size=30, opacity=1)
        return [
            named.mark_line().encode(x=self.x, y=self.y, tooltip=tips, **self.legend.style),
            dots.encode(x=self.x, y=self.y, tooltip=tips, color=self.legend.style["color"]),
        ]

    def limit(self, chart: alt.Chart, name: str, column: str) -> list[alt.Chart]:
        """A limit or a control."""
        named, y = self.legend.called(chart, name), renamed(self.y, column)
        tips = [tip("shown", "series", "N"), _tip_of(self.x), tip(column)]
        dash = named.mark_point(shape="stroke", size=260, strokeWidth=2, opacity=1)
        style = self.legend.style
        lines = [named.mark_line().encode(x=self.x, y=y, tooltip=tips, **style)]
        return lines + ([dash.encode(x=self.x, y=y, color=style["color"])] if self.alone else [])

    def thin(self, rows: Sequence[Row], name: str) -> alt.Chart:
        """Many lines at once, one per head."""
        tips = [tip("layer"), tip("head"), _tip_of(self.x), tip("value")]
        named = self.legend.called(source(rows), name)
        if self.alone:
            named = named.mark_point(shape="stroke", size=400, strokeWidth=1, opacity=0.6)
            channels: dict[str, Any] = {"color": self.legend.style["color"]}
        else:
            named = named.mark_line(opacity=0.4)
            channels = {"detail": [alt.Detail("layer:N"), alt.Detail("head:N")], **self.legend.style}
        drawn: alt.Chart = named.encode(x=self.x, y=self.y, tooltip=tips, **channels)
        return drawn


def _in_words(chart: alt.Chart) -> alt.Chart:
    """Words for a tooltip: a format would write 0 for a missing number."""
    one = "isValid(datum.{0}) ? format(datum.{0}, '.4~g') : 'none'"
    ends = "format(datum.low, '.4~g') + ' to ' + format(datum.high, '.4~g')"
    return chart.transform_calculate(
        interval_words=f"isValid(datum.low) && isValid(datum.high) ? {ends} : 'none'",
        limit_words=one.format("limit"),
        control_words=one.format("control"),
    )


_WORD_TIPS = (
    tip("interval_words", "interval", "N"),
    tip("limit_words", "limit", "N"),
    tip("control_words", "control", "N"),
)


def _tip_of(x: alt.X) -> alt.Tooltip:
    return tip(str(x.shorthand).split(":")[0], x["title"])


def look_of(theme: Theme, interval: str, of: str = "") -> dict[str, Look]:
    """Looks with the same meaning in all charts of a report."""
    return {
        "value": Look(f"measured{interval}", theme.selected, width=2.2),
        "mean": Look(f"mean over heads{interval}", theme.selected, width=2.6),
        "limit": Look(f"limit, where one is proved{of}", theme.proved, (7, 4), 1.5),
        "floor": Look(f"floor that is proved{of}", theme.third, (7, 3, 2, 3), 1.5),
        "control": Look("control: random sets or equal weights", theme.control, (2, 3), 1.8),
        "chosen": Look("the chosen head", theme.fourth, width=2.4),
    }


# -- Whole charts -----------------------------------------------------------------------------------------------------


def unchecked(chart: Callable[P, T]) -> Callable[P, T]:
    """altair checks every piece against a schema of 2 MB, which takes longer than the rest of a page;
    tests draw every chart instead, where a wrong piece is an error."""

    @wraps(chart)
    def draw(*args: P.args, **options: P.kwargs) -> T:
        with debug_mode(False):
            return chart(*args, **options)

    return draw


def panel(layers: Sequence[alt.Chart], title: str, width: int = WIDTH, height: int = HEIGHT) -> Spec:
    """Layers on the same axes, with their data; built by hand, since altair would copy all of it many times."""
    context: dict[str, Any] = {"top_level": False, "datasets": {}}
    drawn = [layer.to_dict(validate=False, context=context) for layer in layers]
    return {"layer": drawn, "width": width, "height": height, "title": title, "datasets": context["datasets"]}


def finished(
    panels: Sequence[Spec | None],
    question: str,
    about: Sequence[str],
    theme: ThemeName,
    *,
    filled: Iterable[str] = (),
    columns: int = 2,
    legend_columns: int = 2,
    independent: Iterable[str] = (),
) -> Spec:
    """The panels that exist, a question as title, the settings below it, and datasets that are filled later.

    Channels in `independent` have a scale per panel.
    """
    drawn = [dict(one) for one in panels if one is not None] or [nothing(THEMES[theme])]
    datasets: dict[str, Any] = {name: [] for name in filled}
    _use_all(drawn, datasets)
    for one in drawn:
        datasets |= {name: list(rows) for name, rows in one.pop("datasets").items()}
    config, scales = THEMES[theme].config(), dict.fromkeys(independent, "independent")
    config["legend"]["columns"] = legend_columns
    chart = {
        "$schema": alt.SCHEMA_URL,
        "config": config,
        "title": {"text": question, "subtitle": list(about), "fontSize": 15},
        "description": f"{question} {'; '.join(about)}",
        "padding": 10,
        "concat": drawn,
        "columns": columns,
        "datasets": datasets,
    }
    return chart | ({"resolve": {"scale": scales}} if scales else {})


def _use_all(panels: Sequence[Spec], names: Iterable[str]) -> None:
    """Vega drops a dataset that no layer draws, so an invisible layer draws it."""
    used = {layer["data"].get("name") for one in panels for layer in one["layer"]}
    unused = [{"data": {"name": name}, "mark": {"type": "point", "opacity": 0}} for name in names if name not in used]
    panels[0]["layer"] = [*panels[0]["layer"], *unused]


def nothing(theme: Theme) -> Spec:
    return panel([source([{}]).mark_text(text="nothing was measured", color=theme.soft, fontSize=12)], "")


# -- Names beside points: each as near to its point as possible, hiding no point or other name; all in pixels ---------


Side = Literal["left", "right", "center"]  # which side of the text is at the given place
Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom
_LETTER, _LINE = 6.0, 13  # what a name needs, in a font of 10 pixels
_AROUND = 6.0  # kept free around a point
_ROUNDS = 4


@dataclass(frozen=True)
class Name:
    """Where a name stands relative to its point; a line leads to a distant one."""

    side: Side
    dx: float
    dy: float

    @property
    def far(self) -> bool:
        return math.hypot(self.dx, self.dy) > 1.5 * _LINE

    def box(self, point: Point, letters: int) -> Box:
        width = letters * _LETTER
        left = point[0] + self.dx - {"left": 0.0, "right": width, "center": width / 2}[self.side]
        return left, point[1] + self.dy - _LINE / 2, left + width, point[1] + self.dy + _LINE / 2


_STEPS = (0, 13, -13, 20, -20, 27, -27, 36, -36, 48, -48, 62, -62, 78, -78)
_BESIDE: tuple[tuple[Side, float], ...] = (("left", 9), ("right", -9), ("left", 26), ("right", -26), ("left", 48))
_TRIED = [Name(side, dx, dy) for dy in _STEPS for side, dx in _BESIDE]
_TRIED += [Name("center", 0, dy) for dy in (-14, 14)]


_OFFSETS = np.array([(name.dx, name.dy) for name in _TRIED])
_FAR = np.array([name.far for name in _TRIED])
_WAY = np.hypot(*_OFFSETS.T)
_HELD = np.array([{"left": 0.0, "right": 1.0, "center": 0.5}[name.side] for name in _TRIED])  # of the width
_ALONG = np.arange(1, 11) / 10  # places along a leading line that are checked


def place_names(
    points: Sequence[Point], names: Sequence[str], size: tuple[float, float], taken: Sequence[Box] = ()
) -> list[Name]:
    """One per point, in a panel of that size; a few rounds place every name anew among all others."""
    placed = [_TRIED[0]] * len(points)
    for _ in range(_ROUNDS):
        before = list(placed)
        for i, point in enumerate(points):
            others = [placed[j].box(points[j], len(names[j])) for j in range(len(points)) if j != i]
            dots = [_free_around(other) for j, other in enumerate(points) if j != i]
            hidden = np.array([*taken, *others, *dots, _free_around(point)])
            placed[i] = _TRIED[int(_costs(point, len(names[i]), hidden, size).argmin())]
        if placed == before:
            break
    return placed


def _free_around(point: Point) -> Box:
    return point[0] - _AROUND, point[1] - _AROUND, point[0] + _AROUND, point[1] + _AROUND


def _costs(point: Point, letters: int, hidden: np.ndarray, size: tuple[float, float]) -> np.ndarray:
    """Per place tried: pixels hidden or outside the panel, boxes that the leading line crosses, and the distance."""
    width = letters * _LETTER
    left = point[0] + _OFFSETS[:, :1] - width * _HELD[:, None]
    top = point[1] + _OFFSETS[:, 1:] - _LINE / 2
    wide = np.minimum(left + width, hidden[:, 2]) - np.maximum(left, hidden[:, 0])
    high = np.minimum(top + _LINE, hidden[:, 3]) - np.maximum(top, hidden[:, 1])
    shared = (wide.clip(0) * high.clip(0)).sum(1)
    beside = (-left).clip(0) + (left + width - size[0]).clip(0) + (-top).clip(0) + (top + _LINE - size[1]).clip(0)
    # The point itself, last of the boxes, is where its line begins.
    line = np.array(point) + _OFFSETS[:, None] * _ALONG[:, None]  # (places, steps, 2)
    boxes = hidden[:-1, None, None]
    inside = (boxes[..., :2] <= line) & (line <= boxes[..., 2:])
    crossed = inside.all(-1).any(-1).sum(0) * _FAR
    return np.asarray(shared + 100 * beside[:, 0] + 60 * crossed + 0.5 * _WAY)
