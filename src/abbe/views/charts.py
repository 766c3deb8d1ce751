"""The kit of all charts: axes, looks under one legend, layers of marks on two axes, names beside points, and pictures.

A chart is a specification of Vega-Lite, written directly: altair would check every piece against a schema of 2 MB,
which takes longer than the rest of a page. Tests draw every chart instead, where a wrong piece is an error.

A chart with a dataset that is filled later has scales fixed beforehand, from the table of all heads, so that heads can
be compared and an empty dataset causes no warning.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from altair import SCHEMA_URL

from .html import vega_lite_version
from .theme import THEMES, Theme, ThemeName

if TYPE_CHECKING:
    import polars as pl

WIDTH, HEIGHT = 268, 216  # two panels fill the text width of a paper
Row = dict[str, Any]
Spec = dict[str, Any]
Channel = dict[str, Any]  # how a column is drawn: an axis, colours, shapes
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


# -- Axes -------------------------------------------------------------------------------------------------------------


def axis(
    field: str, title: str | None, ends: Sequence[float], *, log: bool = False, clamp: bool = False, **look: Any
) -> Channel:
    """A column of numbers between two ends; with `clamp`, what lies beyond is drawn at the edge."""
    scale = (
        {"domain": list(ends), "nice": False} | ({"type": "log"} if log else {}) | ({"clamp": True} if clamp else {})
    )
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": look or {"tickCount": 6}}


def names_axis(field: str, title: str | None = None, order: Iterable[Any] = (), **look: Any) -> Channel:
    """A column of names, or of numbers that stand for names; with `order`, all of these, present or not."""
    scale = {"scale": {"domain": kept}} if (kept := list(dict.fromkeys(order))) else {}
    return {"field": field, "type": "ordinal", "title": title, "axis": look} | scale


def places_axis(field: str, title: str, places: Iterable[float], *, every: bool = True) -> Channel:
    """Logarithmic, with a tick at every place that was measured, or at round numbers."""
    marks = sorted(set(places)) or [1]
    low, high = _around(marks[0], marks[-1], 1.12)
    ticks = marks if every else round_ticks(low, high * 1.3)
    return axis(field, title, (low, high), log=True, values=ticks, format="~g", labelSeparation=3)


def length_axis(lengths: Sequence[int]) -> Channel:
    return places_axis("length", "length L (tokens)", lengths)


def depth_axis(title: str) -> Channel:
    """Where in a prompt something stands, with room at both ends for points that are shifted a little."""
    return axis("depth", title, (-0.08, 1.08), values=[0, 0.25, 0.5, 0.75, 1], format=".2~f")


def linear_axis(field: str, title: str, values: Sequence[float]) -> Channel:
    """An axis from zero; the uppermost tick stays below the edge."""
    return axis(field, title, (1.08 * min((0.0, *values)), 1.08 * max((0.0, *values)) or 1.0))


def log_axis(field: str, title: str, values: Sequence[float], decades: float = 5.0) -> Channel:
    """Logarithmic over the positive values; 0 and values far below the others are drawn at its lower edge."""
    positive = [value for value in values if value > 0]
    if not positive:
        return linear_axis(field, title, [])
    highest = max(positive)
    low, high = _around(max(min(positive), highest / 10**decades), highest, 1.25)
    return axis(field, title, (low, high), log=True, clamp=True, values=round_ticks(low, high), format="~g")


def near_axis(field: str, title: str, values: Sequence[float], most: float = math.inf) -> Channel:
    """Linear around the values, not from 0: for points and lines, which have no length to compare."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.1 * (high - low) or 0.1 * abs(high) or 0.1
    return axis(field, title, (low - room, min(most, high + room)), clamp=True)


def share_axis(field: str, title: str, _: Sequence[float] = ()) -> Channel:
    """An axis from 0 to 1, whatever the values."""
    return axis(field, title, (0, 1.04))


def _around(low: float, high: float, factor: float) -> tuple[float, float]:
    return (low / factor, high * factor) if high > low else (low / 2, high * 2)


def round_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ...; over more than three decades powers of ten, about seven at most; none at the very top."""
    decades = math.log10(high / low)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if decades <= 3 else (1,)
    every = max(1, math.ceil(decades / 7))
    ticks = [float(f"{step}e{power}") for power in range(first, last + 1, every) for step in steps]
    return [tick for tick in ticks if low <= tick <= high * 10 ** (-0.03 * decades)]


def place_on(along: Channel, value: float) -> float:
    """How far along an axis a value lies, from 0 to 1."""
    low, high, at = (_scaled(along, each) for each in (*along["scale"]["domain"], value))
    return (at - low) / (high - low)


def value_on(along: Channel, place: float) -> float:
    """The value at this place of an axis."""
    low, high = (_scaled(along, end) for end in along["scale"]["domain"])
    at = low + place * (high - low)
    return math.exp(at) if "type" in along["scale"] else at


def _scaled(along: Channel, value: float) -> float:
    return math.log(value) if "type" in along["scale"] else value


# -- Looks ------------------------------------------------------------------------------------------------------------

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_STROKES = ("color", "strokeDash", "strokeWidth")


@dataclass(frozen=True)
class Look:
    """How a series looks; an area is shown in the legend as a broad line."""

    label: str
    colour: str
    dash: tuple[int, ...] = (1, 0)
    width: float = 2


def by_value(field: str, values: Mapping[Any, Any], **more: Any) -> Channel:
    """A colour, shape, dash or width for every value of a column."""
    scale = {"type": "ordinal", "domain": list(values), "range": list(values.values())}
    return {"field": field, "type": "nominal", "title": None, "scale": scale} | more


def point_looks(
    field: str, values: Iterable[Any], colours: Iterable[str], shapes: Iterable[str] = SHAPES, **more: Any
) -> dict[str, Any]:
    """Colour and shape by the values of a column, in one legend: readable without colours."""
    known = list(values)
    looks = {"color": colours, "shape": shapes}
    return {name: by_value(field, dict(zip(known, each, strict=False)), **more) for name, each in looks.items()}


def legend_of(looks: Mapping[str, Look]) -> dict[str, Channel]:
    """Colour, dash and width by the column `shown`, in one legend."""
    styles = {look.label: (look.colour, list(look.dash), look.width) for look in looks.values()}
    legend = {"symbolType": "stroke", "symbolSize": 420}
    channels = {
        name: by_value("shown", {label: style[place] for label, style in styles.items()}, legend=legend)
        for place, name in enumerate(_STROKES)
    }
    channels["strokeWidth"]["type"] = "ordinal"  # Vega-Lite wants an order for widths
    return channels


def tip(field: str, title: str = "", *, words: bool = False) -> Channel:
    """A line of a tooltip."""
    kind = {"type": "nominal"} if words else {"type": "quantitative", "format": ".4~g"}
    return {"field": field, "title": title or field} | kind


SERIES = {"shown": "series"}
INTERVAL = {"low": "interval from", "high": "to"}


# -- Layers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Rows, or the name of a dataset that is filled later; and what Vega does with them before it draws."""

    rows: Sequence[Row] | str
    steps: tuple[Spec, ...] = ()

    def where(self, **equal: Any) -> Data:
        """Only rows with these values."""
        return self._then({"filter": {"field": name, "equal": value}} for name, value in equal.items())

    def having(self, *fields: str) -> Data:
        """Only rows with a value in each of these columns."""
        if isinstance(self.rows, str):
            return self._then([{"filter": " && ".join(f"isValid(datum.{name})" for name in fields)}])
        return replace(self, rows=[row for row in self.rows if None not in map(row.get, fields)])

    def adding(self, **columns: str) -> Data:
        """Rows with columns computed by these expressions of Vega."""
        return self._then({"calculate": text, "as": name} for name, text in columns.items())

    def _then(self, steps: Iterable[Spec]) -> Data:
        return replace(self, steps=(*self.steps, *steps))


Rows = Data | Sequence[Row]


def as_data(rows: Rows) -> Data:
    return rows if isinstance(rows, Data) else Data(rows)


_LOOKS = {"line": _STROKES, "rule": _STROKES, "point": ("color", "shape"), "text": ()}  # of other marks: the colour


class Plot:
    """Layers on two axes, with the same tooltips and looks; a layer without rows is left out.

    Args:
        x: an axis.
        y: another one.
        tips: titles by column; a layer shows those of its columns that have values.
        looks: of the series by name, in one legend by the column `shown`.
        alone: there is a single place along x, where a line or an area would be invisible.
        channels: others, such as `color` and `shape`.
    """

    def __init__(
        self,
        x: Channel,
        y: Channel,
        tips: Mapping[str, str] | None = None,
        looks: Mapping[str, Look] | None = None,
        *,
        alone: bool = False,
        **channels: Channel,
    ) -> None:
        self.axes, self.tips, self.looks, self.alone = {"x": x, "y": y}, tips or {}, looks or {}, alone
        self.channels = (legend_of(looks) if looks else {}) | channels
        self.layers: list[Spec] = []
        self.datasets: dict[str, Sequence[Row]] = {}

    def draw(self, kind: str, rows: Rows, by: Mapping[str, Any] | None = None, **mark: Any) -> Self:
        """One layer; a mark with a colour of its own stays outside the legend.

        Args:
            kind: of its marks.
            rows: to be drawn.
            by: channels in place of those of the plot; None leaves one out, a text is another column.
            mark: properties of the marks, before those of the legend.
        """
        data = as_data(rows)
        if not data.rows:
            return self
        fitting = () if "color" in mark else _LOOKS.get(kind, ("color",))
        unfit = {name for name in (*_STROKES, "shape") if name not in fitting or name in mark}
        used = self.axes | {"tooltip": self._tooltip(data.rows)}
        used |= {name: channel for name, channel in self.channels.items() if name not in unfit} | dict(by or {})
        encoding = {name: self._channel(name, channel) for name, channel in used.items() if channel}
        layer = {"data": {"name": self._dataset(data.rows)}, "mark": {"type": kind, **mark}, "encoding": encoding}
        self.layers.append(layer | ({"transform": list(data.steps)} if data.steps else {}))
        return self

    def named(self, rows: Rows, series: str) -> Data:
        """The rows under the label of a series, where they have no column `shown`."""
        return as_data(rows).adding(shown=json.dumps(self.looks[series].label))

    def _tooltip(self, rows: Sequence[Row] | str) -> Any:
        if isinstance(rows, str):
            return None
        known = {name: value for row in rows for name, value in row.items() if value is not None}
        present = {name: title for name, title in self.tips.items() if name in known}
        return [tip(name, title, words=isinstance(known[name], str)) for name, title in present.items()]

    def _channel(self, name: str, channel: Any) -> Any:
        if not isinstance(channel, str):
            return channel
        kind = {} if name in ("x2", "y2") else {"type": "nominal"}  # a second end has the kind of the first
        return self.axes.get(name, kind) | {"field": channel}

    def _dataset(self, rows: Sequence[Row] | str) -> str:
        """Its name: equal rows are stored once."""
        if isinstance(rows, str):
            return rows
        name = f"data-{hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:32]}"
        self.datasets[name] = rows
        return name

    def line(self, rows: Rows, each: str = "", **mark: Any) -> Self:
        """A line per series, and per value of the column `each`."""
        return self.draw("line", rows, {"detail": each}, **mark)

    def dots(self, rows: Rows, by: Mapping[str, Any] | None = None, **mark: Any) -> Self:
        return self.draw("point", rows, by, **{"filled": True, "size": 34, "opacity": 1} | mark)

    def curve(self, rows: Rows, size: float = 34) -> Self:
        """A line per series, with a point at every value."""
        return self.line(rows).dots(rows, size=size)

    def text(self, rows: Rows, column: str, by: Mapping[str, Any] | None = None, **mark: Any) -> Self:
        return self.draw("text", rows, {"text": column} | dict(by or {}), **{"fontSize": 10} | mark)

    def ends(self, rows: Rows, low: str = "low", high: str = "high", along: str = "y", **mark: Any) -> Self:
        """A bar from low to high where both are known, never dashed."""
        by = {along: low, f"{along}2": high, "strokeDash": None}
        return self.draw("rule", as_data(rows).having(low, high), by, **{"strokeWidth": 3, "opacity": 0.45} | mark)

    def band(self, rows: Rows, opacity: float = 0.2, **mark: Any) -> Self:
        """An area from low to high; a bar at a single place."""
        data = as_data(rows).having("low", "high")
        places = () if isinstance(data.rows, str) else {row[self.axes["x"]["field"]] for row in data.rows}
        if self.alone or len(places) == 1:
            return self.ends(data, strokeWidth=4, opacity=2 * opacity, **mark)
        return self.draw("area", data, {"y": "low", "y2": "high"}, opacity=opacity, **mark)

    def level(self, values: Iterable[float], names: Iterable[str] = (), along: str = "y", **mark: Any) -> Self:
        """A dashed line across the panel at each value, with its name, if it has one, at the right end."""
        rows = [{self.axes[along]["field"]: value} for value in values]
        across = {"y": "x", "x": "y"}[along]
        self.draw("rule", rows, {across: None}, **{"strokeDash": [5, 3], "strokeWidth": 1.3} | mark)
        named = [row | {"name": name} for row, name in zip(rows, names, strict=False)]
        place = {"align": "right", "baseline": "bottom", "dy": -2, "color": mark["color"]}
        return self.text(named, "name", {"x": {"value": "width"}}, **place)

    def names(self, rows: Sequence[Row], column: str, theme: Theme, clear: Sequence[tuple[Point, Point]] = ()) -> Self:
        """A name beside every point; a thin line leads to a distant one.

        Names hide no point, no other name and none of the straight lines between the pairs of points in `clear`.
        """
        across, up = self.axes["x"], self.axes["y"]

        def pixels(point: Point) -> Point:
            return WIDTH * place_on(across, point[0]), HEIGHT * (1 - place_on(up, point[1]))

        points = [pixels((row[across["field"]], row[up["field"]])) for row in rows]
        placed = place_names(
            points, [row[column] for row in rows], [_box(pixels(one), pixels(other)) for one, other in clear]
        )
        away = [
            row
            | {"at_x": value_on(across, (left + name.dx) / WIDTH), "at_y": value_on(up, 1 - (top + name.dy) / HEIGHT)}
            for row, (left, top), name in zip(rows, points, placed, strict=True)
        ]
        distant = [row for row, name in zip(away, placed, strict=True) if name.far]
        self.draw("rule", distant, {"x2": "at_x", "y2": "at_y"}, color=theme.soft, strokeWidth=0.7)
        for side in ("left", "right", "center"):
            here = [row for row, name in zip(away, placed, strict=True) if name.side == side]
            self.text(here, column, {"x": "at_x", "y": "at_y"}, align=side, color=theme.ink)
        return self

    def panel(self, title: str, width: int = WIDTH, height: int = HEIGHT) -> Spec:
        return {"layer": self.layers, "width": width, "height": height, "title": title, "datasets": self.datasets}


# -- Whole charts -----------------------------------------------------------------------------------------------------


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
    drawn = [dict(one) for one in panels if one is not None] or [_nothing(THEMES[theme])]
    datasets: dict[str, Any] = {name: [] for name in filled}
    _use_all(drawn, datasets)
    for one in drawn:
        datasets |= {name: list(rows) for name, rows in one.pop("datasets").items()}
    config, scales = THEMES[theme].config(), dict.fromkeys(independent, "independent")
    config["legend"]["columns"] = legend_columns
    chart = {
        "$schema": SCHEMA_URL,
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


def _nothing(theme: Theme) -> Spec:
    return Plot({}, {}).draw("text", [{}], text="nothing was measured", color=theme.soft, fontSize=12).panel("")


# -- Names beside points: each as near to its point as possible, hiding no point or other name; all in pixels ---------

Side = Literal["left", "right", "center"]  # which side of the text is at the given place
Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom
_LETTER, _LINE = 6.0, 13  # what a name needs, in a font of 10 pixels
_AROUND = 6.0  # kept free around a point
_ROUNDS = 4
_STEPS = (0, 13, -13, 20, -20, 27, -27, 36, -36, 48, -48, 62, -62, 78, -78)
_BESIDE: tuple[tuple[Side, float], ...] = (("left", 9), ("right", -9), ("left", 26), ("right", -26), ("left", 48))


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


_TRIED = [Name(side, dx, dy) for dy in _STEPS for side, dx in _BESIDE] + [Name("center", 0, dy) for dy in (-14, 14)]
_OFFSETS = np.array([(name.dx, name.dy) for name in _TRIED])
_FAR = np.array([name.far for name in _TRIED])
_ALONG = np.arange(1, 11)[:, None] / 10  # places along a leading line that are checked


def place_names(points: Sequence[Point], names: Sequence[str], taken: Sequence[Box] = ()) -> list[Name]:
    """One per point, in a panel of the usual size; a few rounds place every name anew among all others."""
    tried = [
        np.array([name.box(point, len(text)) for name in _TRIED]) for point, text in zip(points, names, strict=True)
    ]
    dots = [_box(point, point, _AROUND) for point in points]
    placed = [0] * len(points)
    for _ in range(_ROUNDS):
        for i, point in enumerate(points):
            others = [j for j in range(len(points)) if j != i]
            hidden = np.array([*taken, *(tried[j][placed[j]] for j in others), *(dots[j] for j in others), dots[i]])
            placed[i] = int(_costs(np.array(point), tried[i], hidden).argmin())
    return [_TRIED[place] for place in placed]


def _box(one: Point, other: Point, around: float = 2) -> Box:
    (left, right), (top, bottom) = (sorted(ends) for ends in zip(one, other, strict=True))
    return left - around, top - around, right + around, bottom + around


def _costs(point: np.ndarray, boxes: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """Per box tried: pixels hidden or outside the panel, boxes that the leading line crosses, and the distance."""
    first, last = boxes[:, None, :2], boxes[:, None, 2:]
    shared = (np.minimum(last, hidden[:, 2:]) - np.maximum(first, hidden[:, :2])).clip(0).prod(-1).sum(-1)
    outside = (-first).clip(0).sum((1, 2)) + (last - (WIDTH, HEIGHT)).clip(0).sum((1, 2))
    # The point itself, last of the boxes, is where its line begins.
    line = (point + _OFFSETS[:, None] * _ALONG)[:, :, None]
    inside = (hidden[:-1, :2] <= line) & (line <= hidden[:-1, 2:])  # (places, steps, boxes, 2)
    crossed = np.any(inside.all(-1), axis=1).sum(-1) * _FAR
    return np.asarray(shared + 100 * outside + 60 * crossed + 0.5 * np.hypot(*_OFFSETS.T))


# -- Pictures: PNG, SVG and PDF for papers, SVG inside pages and notebooks --------------------------------------------

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DEFINED = re.compile(r'\bid="([^"]+)"')
_USED = re.compile(r'(\bid="|url\(#|href="#)([^")]+)(["\)])')
_XML_NAMES = re.compile(r' xmlns(:\w+)?="[^"]*"')


def drawings(chart: dict[str, Any]) -> dict[str, bytes]:
    """PNG at twice the size, SVG and PDF, by file ending; needs neither browser nor network."""
    import vl_convert  # a large library

    svg = as_svg(chart)
    return {"png": vl_convert.svg_to_png(svg, scale=2), "svg": svg.encode(), "pdf": vl_convert.svg_to_pdf(svg)}


def as_svg(chart: Mapping[str, Any]) -> str:
    import vl_convert  # as above

    return vl_convert.vegalite_to_svg(for_xml(chart), vl_version=vega_lite_version())


def for_xml(part: Any) -> Any:
    """The same without characters that XML forbids: one of them would make the library end the process."""
    if isinstance(part, str):
        return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", part)
    if isinstance(part, dict):
        return {for_xml(key): for_xml(value) for key, value in part.items()}
    return [for_xml(value) for value in part] if isinstance(part, list | tuple) else part


def svg(chart: Mapping[str, Any]) -> str:
    """The chart as SVG, at most as wide as the page."""
    drawn = _XML_NAMES.sub("", _unique_names(as_svg(chart)))  # HTML knows them, and a page names no host
    label = escape(str(chart["description"]))
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{label}" style="max-width:100%;height:auto" ', 1)


def _unique_names(drawn: str) -> str:
    """Ids unique to this drawing, since a notebook holds many, and reproducible: Vega only counts them up."""
    order = {name: str(i) for i, name in enumerate(dict.fromkeys(_DEFINED.findall(drawn)))}
    counted = _USED.sub(lambda use: use[1] + order.get(use[2], use[2]) + use[3], drawn)
    prefix = f"abbe-{hashlib.sha256(counted.encode()).hexdigest()[:10]}-"
    return _USED.sub(lambda use: use[1] + prefix + use[2] + use[3], counted)
