"""Charts of a table of heads: the map of all heads, their growth with the length, and what such charts share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import altair as alt
import numpy as np
import polars as pl

from ..measures import USUAL_SIZE
from ..words.manifest import part_of
from ..words.measures import about_lines, lengths_in, usual_size
from . import charts
from .charts import Axes, Legend, Look, Row, Spec, finished, look_of, panel, renamed, rows_of, source, tip, unchecked
from .theme import THEMES, ThemeName

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


share = charts.share_axis


@dataclass(frozen=True)
class Shown:
    """A measure that gets a panel: its title, what its axis says, and the kind of axis."""

    measure: str
    title: str
    axis: str
    scale: Callable[[str, str, Sequence[float]], alt.Y]
    size: int | None = None

    @property
    def floor(self) -> str:
        """The measure that is a proved floor of this one, if there is one."""
        return _FLOOR if self.measure == "effective_tokens" else ""

    def axes(self, run: Measured, legend: Legend) -> Axes | None:
        """Over the length, wide enough for all heads; None if nothing was measured."""
        values = numbers_in(rows_for(run, self.measure, self.size))
        if not values:
            return None
        values += numbers_in(rows_for(run, self.floor)) if self.floor else []
        lengths = lengths_in(run.table)
        y = self.scale("value", self.axis, values)
        return Axes(charts.length_axis(lengths), y, legend, alone=len(lengths) == 1)

    def of(self, dataset: str) -> alt.Chart:
        """The rows of this measure in a dataset that is filled later."""
        return source(dataset, measure=self.measure, **({} if self.size is None else {"n": self.size}))


# -- Growth -----------------------------------------------------------------------------------------------------------


@unchecked
def growth_chart(run: Measured, theme: ThemeName, *, chosen: bool = False) -> Spec:
    """All heads over the length; with `chosen`, the head in that dataset on top."""
    colours, size = THEMES[theme], shown_size(run)
    looks = {"heads": Look(some_heads(run.table)[1], colours.ramp[0], width=0.8)}
    looks |= look_of(colours, interval_words(run), ", mean")
    legend = Legend.of(looks, ["heads", "mean", "limit", "floor", "control", *(["chosen"] if chosen else [])])
    measures = (
        Shown("max_weight", "largest weight", "share of a query's weight", charts.log_axis),
        Shown("effective_tokens", "dispersion", "effective tokens", charts.log_axis),
        Shown("separability", f"separability, N = {size}", "share in the ball", share, size),
    )
    panels = [*(_over_length(run, legend, shown) for shown in measures), _decays(run, legend)]
    question = "Do heads lose focus in longer texts?"
    return finished(panels, question, about_lines(run.table, run.manifest), theme, filled=["chosen"] if chosen else [])


def _over_length(run: Measured, legend: Legend, shown: Shown) -> Spec | None:
    axes = shown.axes(run, legend)
    if axes is None:
        return None
    table = rows_for(run, shown.measure, shown.size)
    means = source(rows_of(of_all_heads(table).drop("model", "layer", "head", "n", "measure")))
    layers = [axes.thin(rows_of(some_heads(table)[0].select("layer", "head", "length", "value")), "heads")]
    layers += [*axes.limit(means, "limit", "limit"), *axes.limit(means, "control", "control")]
    if shown.floor:
        floors = of_all_heads(rows_for(run, shown.floor)).select("length", "value")
        layers += axes.limit(source(rows_of(floors)), "floor", "value")
    layers += [axes.band(means, "mean"), *axes.line(means, "mean")]
    if "chosen" in legend.looks:
        layers += [axes.band(shown.of("chosen"), "chosen"), *axes.line(shown.of("chosen"), "chosen")]
    return panel(layers, shown.title)


def _decays(run: Measured, legend: Legend) -> Spec | None:
    """A histogram of decay exponents, their mean with its interval, and 1, the exponent of equal weights."""
    table = rows_for(run, _DECAY)
    values = numbers_in(of_heads(table), "value")
    if not values:
        return None
    edges = equal_edges(values, around=(0.0, 1.0))
    scale = alt.Scale(domain=[edges[0], edges[-1]], nice=False)
    x = alt.X("value:Q", title="decay exponent: 0 holds, 1 fades as 1/L", scale=scale, axis=alt.Axis(tickCount=6))
    layers = [counted(bars(values, edges), x, legend, "heads"), *_marks(x, legend, table)]
    return panel(layers, "how fast the largest weight fades")


def _marks(x: alt.X, legend: Legend, table: pl.DataFrame) -> list[alt.Chart]:
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


# -- How many heads have which value: bars that are counted beforehand, so that a page holds few numbers --------------


def counted(bars: Sequence[Row], x: alt.X, legend: Legend, name: str) -> alt.Chart:
    """The bars; a bar may name a series other than `name`."""
    shown = [bar | {"shown": legend.looks[bar.get("series", name)].label} for bar in bars]
    tips = [tip("shown", "series", "N"), tip("value", "from"), tip("end", "to"), tip("heads")]
    scale = alt.Scale(domain=[0, 1.1 * max((bar["heads"] for bar in bars), default=1)], nice=False)
    y = alt.Y("heads:Q", title="heads", scale=scale, axis=alt.Axis(tickMinStep=1, tickCount=5, format="d"))
    marks = source(shown).mark_rect(opacity=0.8, stroke=None)
    drawn: alt.Chart = marks.encode(x=x, x2="end:Q", y=y, y2=alt.datum(0), color=legend.style["color"], tooltip=tips)
    return drawn


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


@unchecked
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
    rows = rows_of(at.select("layer", "head", "value"))
    values = [value for value in charts.numbers(rows, "value") if value > 0 or not log]
    if not values:
        return None
    low, high = min(values), max(values)
    if high <= low:  # never an empty range
        low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
    x, y = map_axes()
    present = [row for row in rows if row["value"] is not None]
    missing = [row for row in rows if row["value"] is None]
    tips = [tip("layer"), tip("head"), tip("value", unit)]
    colour = map_colour("value", unit, low, high, THEMES[theme].heat, THEMES[theme].ink, log=log)
    layers = [source(present).mark_rect().encode(x=x, y=y, color=colour, tooltip=tips)]
    inked = [row | {"words": "–", "ink": THEMES[theme].soft} for row in missing]
    if missing:
        layers.append(source(missing).mark_rect(color=THEMES[theme].control_pale).encode(x=x, y=y))
    if len({row["head"] for row in rows}) <= _WRITTEN:
        first, edge, last = _INKS[theme]
        place = (lambda value: math.log(max(value, low))) if log else float
        turn = place(low) + edge * (place(high) - place(low))
        inked += [
            row | {"words": _short(row["value"]), "ink": first if place(row["value"]) < turn else last}
            for row in present
        ]
    for ink in sorted({row["ink"] for row in inked}):  # a layer per ink, since a map has a single colour scale
        written = source([row for row in inked if row["ink"] == ink]).mark_text(fontSize=9, color=ink)
        layers.append(written.encode(x=x, y=y, text=alt.Text("words:N")))
    return map_panel(layers, rows, f"{title}, L = {at['length'][0]}")


def map_axes() -> tuple[alt.X, alt.Y]:
    """Head by layer."""
    gap, axis = alt.Scale(paddingInner=0.04), alt.Axis(labelOverlap="parity", ticks=False, domain=False)
    return alt.X("head:O", title="head", scale=gap, axis=axis), alt.Y("layer:O", title="layer", scale=gap, axis=axis)


def map_colour(
    field: str, title: str, low: float, high: float, colours: Sequence[str], ink: str, *, log: bool = False
) -> alt.Color:
    """Three colours from low to high; with `log`, equal steps are equal factors."""
    domain = [low, math.sqrt(low * high) if log else (low + high) / 2, high]
    kind: Literal["log", "linear"] = "log" if log else "linear"
    scale = alt.Scale(type=kind, domain=domain, range=list(colours), interpolate="lab", clamp=True)
    legend = alt.Legend(title=title, titleColor=ink, titleFontWeight="normal", gradientLength=200)
    legend["format"] = "~g" if log else ".3~g"
    legend["values" if log else "tickCount"] = charts.round_ticks(low, high) if log else 5
    return alt.Color(f"{field}:Q", title=title, scale=scale, legend=legend)


def map_panel(layers: Sequence[alt.Chart], rows: Sequence[Row], title: str, width: int = charts.WIDTH) -> Spec:
    """As high as there are layers of the model, within limits."""
    return panel(layers, title, width, max(60, min(420, 26 * len({row["layer"] for row in rows}))))


def _short(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 1 else f"{value:.3g}"
