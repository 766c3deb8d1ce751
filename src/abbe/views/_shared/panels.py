"""What the figures share: rows that JSON can hold, axes, bands, and panels side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import altair as alt

if TYPE_CHECKING:
    import polars as pl

WIDTH, HEIGHT = 268, 216  # two panels fill the text width of a paper
Row = dict[str, Any]
Panel = alt.LayerChart | alt.ConcatChart
VECTOR_NAMES = {"embedding": "token embeddings", "value": "value vectors", "hidden": "hidden states"}
_DIGITS = 6


def rows_of(table: pl.DataFrame) -> list[Row]:
    """The table as it is drawn: six digits, null for what is not finite."""
    return [{name: _tidy(value) for name, value in row.items()} for row in table.iter_rows(named=True)]


def _tidy(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def numbers(rows: Iterable[Row], *fields: str) -> list[float]:
    """All values of these columns that are there."""
    return [row[name] for row in rows for name in fields if row.get(name) is not None]


def vectors_of(table: pl.DataFrame) -> list[str]:
    """The kinds of vectors in the table, in its order."""
    return table["vectors"].unique(maintain_order=True).to_list()


def of_vectors(table: pl.DataFrame, kind: str) -> list[Row]:
    return rows_of(table.filter(vectors=kind))


def vector_name(kind: str) -> str:
    return VECTOR_NAMES.get(kind, f"{kind} vectors")


def data(rows: Sequence[Row]) -> alt.InlineData:
    return alt.InlineData(values=list(rows))


def places_axis(field: str, title: str, places: Iterable[float], *, every: bool = True) -> alt.X:
    """A logarithmic axis with a tick at every place that was measured, or at round numbers."""
    marks = sorted(set(places)) or [1]
    low, high = _around(marks[0], marks[-1], 1.12)
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    ticks = marks if every else _ticks(low, high * 1.3)
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(values=ticks, format="~g", labelSeparation=3))


def value_axis(field: str, title: str, values: Sequence[float], *, log: bool = True) -> alt.Y:
    """Logarithmic where every value is positive; else linear, from zero. The uppermost tick stays below the edge."""
    if not (log and is_log(values)):
        edges = [1.08 * min((0.0, *values)), 1.08 * max(values, default=1.0) or 1.0]
        scale = alt.Scale(domain=edges, nice=False)
        return alt.Y(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6))
    low, high = _around(min(values), max(values), 1.25)
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return alt.Y(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(values=_ticks(low, high), format="~g"))


def is_log(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0


def _around(low: float, high: float, factor: float) -> list[float]:
    return [low / factor, high * factor] if high > low else [low / 2, high * 2]


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ...; over more than three decades powers of ten, about seven at most; none at the very top."""
    decades = math.log10(high / low)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if decades <= 3 else (1,)
    every = max(1, math.ceil(decades / 7))
    ticks = [float(f"{step}e{power}") for power in range(first, last + 1, every) for step in steps]
    return [tick for tick in ticks if low <= tick <= high * 10 ** (-0.03 * decades)]


def with_intervals(
    rows: Sequence[Row], x: alt.X, y: alt.Y, tips: Sequence[alt.Tooltip], style: Mapping[str, Any]
) -> list[alt.Chart]:
    """Lines with a point at every measured place, before their intervals; `style` are the encodings of the series."""
    chart, tooltip = alt.Chart(data(rows)), [*tips, *INTERVAL_TIPS]
    points = chart.mark_point(filled=True, size=34, opacity=1)
    return [
        *_bands(rows, x, y, style["color"]),
        chart.mark_line().encode(x=x, y=y, tooltip=tooltip, **style),
        points.encode(x=x, y=y, tooltip=tooltip, color=style["color"]),
    ]


def _bands(rows: Sequence[Row], x: alt.X, y: alt.Y, colour: alt.Color) -> list[alt.Chart]:
    """A band from low to high, or a bar where a band would have no width. Rows without an interval have none."""
    whole = [row for row in rows if row.get("low") is not None and row.get("high") is not None]
    if not whole:
        return []
    floor = min((value for value in numbers(rows, "value", "low") if value > 0), default=0.0)
    if is_log(numbers(rows, "value")):
        whole = [row | {"low": max(row["low"], floor)} for row in whole]
    field = str(x.shorthand).split(":")[0]
    chart = alt.Chart(data(whole))
    flat = len({row[field] for row in whole}) == 1
    marks = chart.mark_rule(strokeWidth=4, opacity=0.35) if flat else chart.mark_area(opacity=0.2)
    return [marks.encode(x=x, y=renamed(y, "low"), y2=alt.Y2("high:Q"), color=colour)]


def renamed(y: alt.Y, field: str) -> alt.Y:
    """The same axis for another column."""
    other: alt.Y = y.copy()
    other.shorthand = f"{field}:Q"
    return other


def tip(field: str, title: str | None = None, kind: str = "Q") -> alt.Tooltip:
    form: dict[str, Any] = {"format": ".4~g"} if kind == "Q" else {}
    return alt.Tooltip(f"{field}:{kind}", title=title or field, **form)


INTERVAL_TIPS = (tip("low", "interval from"), tip("high", "to"))


def panel(layers: Sequence[alt.Chart], title: str, width: int = WIDTH, height: int = HEIGHT) -> alt.LayerChart:
    return alt.LayerChart(layer=list(layers), width=width, height=height, title=title)


def share_axis(field: str, title: str) -> alt.Y:
    """A linear axis from 0 to 1."""
    return alt.Y(f"{field}:Q", title=title, scale=alt.Scale(domain=[0, 1.04], nice=False), axis=alt.Axis(tickCount=6))


@dataclass(frozen=True)
class Look:
    """How a series looks; an area is shown in the legend as a broad line."""

    label: str
    colour: str
    dash: tuple[int, ...] = (1, 0)
    width: float = 2


def series_style(looks: Mapping[str, Look], present: Iterable[str]) -> dict[str, Any]:
    """Colour, dash and width by the column `shown`, in one legend of the series that are there."""
    there = set(present)
    shown = [look for name, look in looks.items() if name in there]
    labels = [look.label for look in shown]
    legend = alt.Legend(symbolType="stroke", symbolSize=420)
    channels: tuple[tuple[str, Any, str, list[Any]], ...] = (  # Vega-Lite wants an order for widths, and none for hues
        ("color", alt.Color, "N", [look.colour for look in shown]),
        ("strokeDash", alt.StrokeDash, "N", [list(look.dash) for look in shown]),
        ("strokeWidth", alt.StrokeWidth, "O", [look.width for look in shown]),
    )
    scales = [alt.Scale(type="ordinal", domain=labels, range=channel[-1]) for channel in channels]
    return {
        name: channel(f"shown:{kind}", title=None, scale=scale, legend=legend)
        for (name, channel, kind, _), scale in zip(channels, scales, strict=True)
    }
