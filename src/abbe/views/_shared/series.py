"""What the charts of a report share: datasets that a page fills later, axes, series under one legend.

A chart with a dataset that is filled later has scales fixed beforehand, from the table of all heads, so that heads can
be compared and an empty dataset causes no warning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import altair as alt
from altair.utils.schemapi import debug_mode

from .panels import HEIGHT, WIDTH, Look, Row, places_axis, renamed, series_style, tip, value_axis
from .theme import THEMES, Theme, ThemeName

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
    for name in names:
        if name not in used:
            panels[0]["layer"] = [
                *panels[0]["layer"],
                {"data": {"name": name}, "mark": {"type": "point", "opacity": 0}},
            ]


def nothing(theme: Theme) -> Spec:
    return panel([source([{}]).mark_text(text="nothing was measured", color=theme.soft, fontSize=12)], "")
