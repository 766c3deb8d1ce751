"""Charts of a table of heads: the map of all heads, their growth with the length, and what such charts share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import polars as pl

from ..measures import USUAL_SIZE
from ..words.manifest import part_of
from ..words.measures import about_lines, lengths_in, usual_size
from . import charts
from .charts import Channel, Data, Look, Plot, Row, Rows, Spec, axis, finished, names_axis, rows_of, tip
from .theme import THEMES, Theme, ThemeName

FAINT_HEADS = 160  # more lines would add nothing
_NUMBERS = ("value", "low", "high", "limit", "control")
_LINEAR, _LOG = 24, 14  # largest number of bars
_SLACK = 1e-9  # a value on the edge of a bar belongs to it despite rounding
_WRITTEN = 10  # heads in a layer: with more there is no room for numbers in the cells
_DECAY, _FLOOR = "decay_exponent", "effective_tokens_floor"
# Below this place in the ramp the first ink is more legible, above it the last.
_INKS: dict[ThemeName, tuple[str, float, str]] = {
    "light": ("#0a1420", 0.62, "#ffffff"),
    "dark": ("#ffffff", 0.42, "#0a1420"),
}


class Measured(Protocol):
    """A run, or anything else with its table and manifest."""

    @property
    def table(self) -> pl.DataFrame: ...

    @property
    def manifest(self) -> Mapping[str, Any]: ...


# -- What charts read from a run --------------------------------------------------------------------------------------


def shown_size(run: Measured) -> int:
    return usual_size(run.table) or USUAL_SIZE


def rows_for(run: Measured, measure: str, size: int | None = None) -> pl.DataFrame:
    """All rows of a measure, at one set size if it has any; non-finite numbers become null."""
    rows = run.table.filter((pl.col("measure") == measure) & pl.col("n").eq_missing(pl.lit(size, pl.Int32)))
    return finite(rows, *_NUMBERS)


def finite(table: pl.DataFrame, *columns: str) -> pl.DataFrame:
    return table.with_columns(pl.when(pl.col(name).is_finite()).then(pl.col(name)) for name in columns)


def of_heads(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("head").is_not_null() & pl.col("layer").is_not_null())


def of_all_heads(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("head").is_null() & pl.col("layer").is_null())


def numbers_in(table: pl.DataFrame, *columns: str) -> list[float]:
    """All finite numbers of these columns."""
    together = pl.concat([table[name].cast(pl.Float64) for name in columns or _NUMBERS])
    return together.filter(together.is_finite()).to_list()


def some_heads(table: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """The rows of at most `FAINT_HEADS` heads, evenly spaced, and their label."""
    heads = of_heads(table)
    places = heads.select("layer", "head").unique().sort("layer", "head")
    if places.height <= FAINT_HEADS:
        return heads, "single heads"
    kept = [round(i * (places.height - 1) / (FAINT_HEADS - 1)) for i in range(FAINT_HEADS)]
    label = f"single heads ({FAINT_HEADS} of {places.height:,})"
    return heads.join(places[kept], on=["layer", "head"], how="semi", maintain_order="left"), label


def interval_words(run: Measured) -> str:
    """How the legend names intervals, if there are any."""
    level = part_of(run.manifest, "settings").get("level")
    if run.table["low"].is_null().all():
        return ""
    return f", with {100 * level:g} % interval" if isinstance(level, float) else ", with interval"


# -- Panels of one measure --------------------------------------------------------------------------------------------


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


class HeadPlot(Plot):
    """Values of heads; tooltips are written out, since a dataset may be filled later."""

    def measured(self, rows: Rows, series: str, *, band: bool = True) -> Self:
        """Values with their intervals, and a point at every place. Numbers that may be missing are put into words, as
        a format would write 0 for them."""
        number = "isValid(datum.{0}) ? format(datum.{0}, '.4~g') : 'none'"
        ends = "format(datum.low, '.4~g') + ' to ' + format(datum.high, '.4~g')"
        data = self.named(rows, series).adding(
            interval_words=f"isValid(datum.low) && isValid(datum.high) ? {ends} : 'none'",
            limit_words=number.format("limit"),
            control_words=number.format("control"),
        )
        words = [tip(f"{name}_words", name, words=True) for name in ("interval", "limit", "control")]
        by = {"tooltip": [*self._said("value"), *words]}
        if band:
            self.band(rows, opacity=0.22, color=self.looks[series].colour)
        return self.draw("line", data, by).dots(data, by, size=30)

    def limit(self, rows: Rows, series: str, column: str) -> Self:
        """A limit or a control."""
        data, by = self.named(rows, series), {"y": column, "tooltip": self._said(column)}
        self.draw("line", data, by)
        return self.dots(data, by, filled=False, shape="stroke", size=260, strokeWidth=2) if self.alone else self

    def thin(self, rows: Sequence[Row], series: str) -> Self:
        """Many lines at once, one per head."""
        data = self.named(rows, series)
        by: dict[str, Any] = {"tooltip": [tip("layer"), tip("head"), *self._said("value")[1:]]}
        if self.alone:
            return self.draw("point", data, by, shape="stroke", size=400, strokeWidth=1, opacity=0.6)
        by["detail"] = [{"field": name, "type": "nominal"} for name in ("layer", "head")]
        return self.draw("line", data, by, opacity=0.4)

    def _said(self, column: str) -> list[Channel]:
        x = self.axes["x"]
        return [tip("shown", "series", words=True), tip(x["field"], x["title"]), tip(column)]


@dataclass(frozen=True)
class Shown:
    """A measure that gets a panel: its title, what its axis says, and the kind of axis."""

    measure: str
    title: str
    axis: str
    scale: Callable[[str, str, Sequence[float]], Channel]
    size: int | None = None

    @property
    def floor(self) -> str:
        """The measure that is a proved floor of this one, if there is one."""
        return _FLOOR if self.measure == "effective_tokens" else ""

    def plot(self, run: Measured, looks: Mapping[str, Look]) -> HeadPlot | None:
        """Over the length, wide enough for all heads; None if nothing was measured."""
        values = numbers_in(rows_for(run, self.measure, self.size))
        if not values:
            return None
        values += numbers_in(rows_for(run, self.floor)) if self.floor else []
        lengths = lengths_in(run.table)
        y = self.scale("value", self.axis, values)
        return HeadPlot(charts.length_axis(lengths), y, looks=looks, alone=len(lengths) == 1)

    def of(self, dataset: str) -> Data:
        """The rows of this measure in a dataset that is filled later."""
        return Data(dataset).where(measure=self.measure, **({} if self.size is None else {"n": self.size}))


# -- Growth -----------------------------------------------------------------------------------------------------------


def growth_chart(run: Measured, theme: ThemeName, *, chosen: bool = False) -> Spec:
    """All heads over the length; with `chosen`, the head in that dataset on top."""
    colours, size = THEMES[theme], shown_size(run)
    looks = {"heads": Look(some_heads(run.table)[1], colours.ramp[0], width=0.8)}
    looks |= look_of(colours, interval_words(run), ", mean")
    looks = {name: look for name, look in looks.items() if name != "value" and (chosen or name != "chosen")}
    measures = (
        Shown("max_weight", "largest weight", "share of a query's weight", charts.log_axis),
        Shown("effective_tokens", "dispersion", "effective tokens", charts.log_axis),
        Shown("separability", f"separability, N = {size}", "share in the ball", charts.share_axis, size),
    )
    panels = [*(_over_length(run, looks, shown) for shown in measures), _decays(run, looks)]
    question = "Do heads lose focus in longer texts?"
    return finished(panels, question, about_lines(run.table, run.manifest), theme, filled=["chosen"] if chosen else [])


def _over_length(run: Measured, looks: Mapping[str, Look], shown: Shown) -> Spec | None:
    plot = shown.plot(run, looks)
    if plot is None:
        return None
    table = rows_for(run, shown.measure, shown.size)
    means = rows_of(of_all_heads(table).drop("model", "layer", "head", "n", "measure"))
    plot.thin(rows_of(some_heads(table)[0].select("layer", "head", "length", "value")), "heads")
    plot.limit(means, "limit", "limit").limit(means, "control", "control")
    if shown.floor:
        plot.limit(rows_of(of_all_heads(rows_for(run, shown.floor)).select("length", "value")), "floor", "value")
    plot.measured(means, "mean")
    if "chosen" in looks:
        plot.measured(shown.of("chosen"), "chosen")
    return plot.panel(shown.title)


def _decays(run: Measured, looks: Mapping[str, Look]) -> Spec | None:
    """A histogram of decay exponents, their mean with its interval, and 1, the exponent of equal weights."""
    table = rows_for(run, _DECAY)
    values = numbers_in(of_heads(table), "value")
    if not values:
        return None
    edges = equal_edges(values, around=(0.0, 1.0))
    x = axis("value", "decay exponent: 0 holds, 1 fades as 1/L", (edges[0], edges[-1]))
    plot = counted(bars(values, edges), x, looks, "heads")
    mean = rows_of(of_all_heads(table).select("value", "low", "high"))
    strip = {"x": "low", "x2": "high", "y": None, "tooltip": None}
    plot.draw("rect", Data(mean).having("low", "high"), strip, opacity=0.25, color=looks["mean"].colour)
    drawn: dict[str, Rows] = {
        "control": [{"value": value} for value in sorted(set(numbers_in(table, "control")))[:1]],
        "mean": mean,
        "chosen": Data("chosen").where(measure=_DECAY),
    }
    tips = [tip("shown", "series", words=True), tip("value", "decay exponent")]
    for name, rows in ((name, rows) for name, rows in drawn.items() if name in looks):
        plot.draw("rule", plot.named(rows, name), {"y": None, "tooltip": tips})
    return plot.panel("how fast the largest weight fades")


# -- How many heads have which value: bars that are counted beforehand, so that a page holds few numbers --------------


def counted(bars: Sequence[Row], x: Channel, looks: Mapping[str, Look], name: str) -> Plot:
    """The bars; a bar may name a series other than `name`."""
    shown = [bar | {"shown": looks[bar.get("series", name)].label} for bar in bars]
    top = 1.1 * max((bar["heads"] for bar in bars), default=1)
    y = axis("heads", "heads", (0, top), tickMinStep=1, tickCount=5, format="d")
    plot = Plot(x, y, charts.SERIES | {"value": "from", "end": "to", "heads": ""}, looks)
    return plot.draw("rect", shown, {"x2": "end", "y2": {"datum": 0}}, opacity=0.8, stroke=None)


def bars(values: Sequence[float], edges: Sequence[float]) -> list[Row]:
    """The bars between these edges that hold any value."""
    inner = np.asarray(edges)
    counts = np.histogram(np.clip(np.asarray(values) + _SLACK * np.diff(inner).min(), inner[0], inner[-1]), inner)[0]
    ends = [float(f"{edge:.6g}") for edge in edges]
    return [
        {"value": low, "end": high, "heads": int(count)}
        for low, high, count in zip(ends, ends[1:], counts, strict=False)
        if count
    ]


def equal_edges(values: Sequence[float], around: tuple[float, float]) -> list[float]:
    """Edges of bars of a round width that hold all values and `around`."""
    low, high = min(*values, around[0]), max(*values, around[1])
    least = (high - low) / _LINEAR
    power = math.floor(math.log10(least))
    step = next(step for digit in (1, 2, 5, 10) if (step := float(f"{digit}e{power}")) >= least)
    return [i * step for i in range(math.floor(low / step), math.floor(high / step) + 2)]


def log_edges(values: Sequence[float], around: Sequence[float]) -> list[float]:
    """Edges of bars of equal width on a logarithmic axis."""
    low, high = min([*values, *around], default=0.5), max([*values, *around], default=2.0)
    if high <= low:
        low, high = low / 2, high * 2
    return [low * (high / low) ** (i / _LOG) for i in range(_LOG + 1)]


# -- The map ----------------------------------------------------------------------------------------------------------


def map_chart(run: Measured, theme: ThemeName) -> Spec:
    """Layer x head at the longest length: how many tokens a head attends to, how many selected ones are separable."""
    size = shown_size(run)
    dispersion, separability = rows_for(run, "effective_tokens"), rows_for(run, "separability", size)
    panels = [
        _cells(dispersion, theme, "dispersion", "effective tokens", log=True),
        _cells(separability, theme, f"separability, N = {size}", "share of the selected in the ball", log=False),
    ]
    question = "Which heads select, and which disperse?"
    return finished(panels, question, about_lines(run.table, run.manifest), theme, independent=["color"])


def _cells(table: pl.DataFrame, theme: ThemeName, title: str, unit: str, *, log: bool) -> Spec | None:
    at = of_heads(table).filter(pl.col("length") == pl.col("length").max())
    rows, colours = rows_of(at.select("layer", "head", "value")), THEMES[theme]
    values = [value for value in charts.numbers(rows, "value") if value > 0 or not log]
    if not values:
        return None
    low, high = min(values), max(values)
    if high <= low:  # never an empty range
        low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
    present, missing = ([row for row in rows if (row["value"] is None) == absent] for absent in (False, True))
    plot = head_map({"layer": "", "head": "", "value": unit})
    plot.draw("rect", present, {"color": gradient("value", unit, (low, high), colours.heat, colours.ink, log=log)})
    plot.draw("rect", missing, color=colours.control_pale)
    inked = [row | {"words": "–", "ink": colours.soft} for row in missing]
    if len({row["head"] for row in rows}) <= _WRITTEN:
        first, edge, last = _INKS[theme]
        place = (lambda value: math.log(max(value, low))) if log else float
        turn = place(low) + edge * (place(high) - place(low))
        inked += [
            row | {"words": _short(row["value"]), "ink": first if place(row["value"]) < turn else last}
            for row in present
        ]
    for ink in sorted({row["ink"] for row in inked}):  # a layer per ink, since a map has a single colour scale
        plot.text([row for row in inked if row["ink"] == ink], "words", fontSize=9, color=ink)
    return plot.panel(f"{title}, L = {at['length'][0]}", height=map_height(rows))


def head_map(tips: Mapping[str, str]) -> Plot:
    """Head by layer."""
    x, y = (names_axis(name, name, labelOverlap="parity", ticks=False, domain=False) for name in ("head", "layer"))
    gap = {"scale": {"paddingInner": 0.04}}
    return Plot(x | gap, y | gap, tips)


def map_height(rows: Sequence[Row]) -> int:
    """Height for the layers of the model, within limits."""
    return max(60, min(420, 26 * len({row["layer"] for row in rows})))


def gradient(
    field: str, title: str, ends: tuple[float, float], colours: Sequence[str], ink: str, *, log: bool = False
) -> Channel:
    """Three colours from low to high; with `log`, equal steps are equal factors."""
    low, high = ends
    middle = math.sqrt(low * high) if log else (low + high) / 2
    scale = {"type": "log" if log else "linear", "domain": [low, middle, high], "range": list(colours)}
    ticks = {"format": "~g", "values": charts.round_ticks(low, high)} if log else {"format": ".3~g", "tickCount": 5}
    legend = {"title": title, "titleColor": ink, "titleFontWeight": "normal", "gradientLength": 200} | ticks
    more = {"scale": scale | {"interpolate": "lab", "clamp": True}, "legend": legend}
    return {"field": field, "type": "quantitative", "title": title} | more


def _short(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 1 else f"{value:.3g}"
