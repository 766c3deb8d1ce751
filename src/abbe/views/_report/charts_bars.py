"""How many heads have which value: bars of equal width, counted beforehand, so that a page holds few numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt

from .._shared.panels import Row, tip
from .._shared.series import Legend, source

_LINEAR, _LOG = 24, 14  # largest number of bars
_SLACK = 1e-9  # of a bar: a value on its edge belongs to it despite rounding


def counted(bars: Sequence[Row], x: alt.X, legend: Legend, name: str) -> alt.Chart:
    """The bars; a bar may name a series other than `name`."""
    shown = [bar | {"shown": legend.looks[bar.get("series", name)].label} for bar in bars]
    tips = [tip("shown", "series", "N"), tip("value", "from"), tip("end", "to"), tip("heads")]
    scale = alt.Scale(domain=[0, 1.1 * max((bar["heads"] for bar in bars), default=1)], nice=False)
    y = alt.Y("heads:Q", title="heads", scale=scale, axis=alt.Axis(tickMinStep=1, tickCount=5, format="d"))
    marks = source(shown).mark_rect(opacity=0.8, stroke=None)
    drawn: alt.Chart = marks.encode(x=x, x2="end:Q", y=y, y2=alt.datum(0), color=legend.style["color"], tooltip=tips)
    return drawn


def equal_bars(values: Sequence[float], around: tuple[float, float]) -> tuple[list[Row], list[float]]:
    """Bars of a round width that hold all values, and the ends of an axis that covers them and `around`."""
    low, high = min(*values, around[0]), max(*values, around[1])
    step = _round_step((high - low) / _LINEAR)
    counts: dict[int, int] = {}
    for value in values:
        place = math.floor(value / step + _SLACK)
        counts[place] = counts.get(place, 0) + 1
    first, last = math.floor(low / step), math.floor(high / step) + 1
    return [_bar(i * step, (i + 1) * step, count) for i, count in sorted(counts.items())], [first * step, last * step]


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, ... times a power of ten that is at least this."""
    power = math.floor(math.log10(least))
    return next(step for digit in (1, 2, 5, 10) if (step := float(f"{digit}e{power}")) >= least)


def log_bars(values: Sequence[float], around: Sequence[float]) -> tuple[list[Row], list[float], float]:
    """Bars of equal width on a logarithmic axis, its ends, and the width as a factor."""
    low, high = min([*values, *around], default=0.5), max([*values, *around], default=2.0)
    if high <= low:
        low, high = low / 2, high * 2
    step = (high / low) ** (1 / _LOG)
    counts = [0] * _LOG
    for value in values:
        counts[min(_LOG - 1, math.floor(math.log(value / low) / math.log(step) + _SLACK))] += 1
    bars = [_bar(low * step**i, low * step ** (i + 1), count) for i, count in enumerate(counts) if count]
    return bars, [low, high], step


def _bar(start: float, end: float, heads: int) -> Row:
    return {"value": float(f"{start:.6g}"), "end": float(f"{end:.6g}"), "heads": heads}
