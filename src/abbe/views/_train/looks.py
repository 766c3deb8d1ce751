"""How series look: hues in a fixed order, then the same hues with other dashes; and axes for losses and accuracies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import polars as pl

from .._shared.panels import Look, Row, rows_of, share_axis
from .._shared.series import linear_axis, log_axis
from .._shared.theme import Theme

_WIDE = 10.0  # from this ratio on, a logarithmic axis has enough ticks
_LOW = 0.6  # accuracies below it would lie at the bottom of an axis up to 1
_DASHES = ((1, 0), (6, 3), (2, 3))
CONTROL_DASH = (7, 4)
BROAD = 4.5  # pixels: wide enough to stay visible below the controls that lie on it
SEEDS: dict[str, Any] = {"filled": True, "size": 22, "opacity": 0.6}  # points of single seeds
MEANS: dict[str, Any] = {"filled": True, "size": 46, "opacity": 1}


def hues(theme: Theme) -> tuple[str, ...]:
    return theme.selected, theme.claim, theme.third, theme.fourth, theme.ink, theme.control


def looks_of(names: Iterable[str], theme: Theme) -> dict[str, Look]:
    colours = hues(theme)
    return {
        name: Look(name, colours[place % len(colours)], _DASHES[place // len(colours) % len(_DASHES)])
        for place, name in enumerate(dict.fromkeys(names))
    }


def over_seeds(rows: pl.DataFrame, by: Sequence[str], *values: str) -> list[Row]:
    """The mean over seeds; null if no seed has a value."""
    return rows_of(rows.group_by(by, maintain_order=True).agg(pl.col(name).mean() for name in values))


def wide_axis(field: str, title: str, values: Sequence[float], decades: float) -> alt.Y:
    """Logarithmic over a wide range, else linear around the values."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) >= _WIDE * min(positive):
        return log_axis(field, title, values, decades)
    return near_axis(field, title, values)


def near_axis(
    field: str, title: str, values: Sequence[float], within: tuple[float, float] = (-math.inf, math.inf)
) -> alt.Y:
    """Linear around the values, not from 0: for points and lines, which have no length to compare."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 0.1
    domain = [max(within[0], low - room), min(within[1], high + room)]
    scale = alt.Scale(domain=domain, nice=False, zero=False, clamp=True)
    return alt.Y(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5))


def accuracy_axis(values: Sequence[float]) -> alt.Y:
    """From 0 to 1, or less if all are low."""
    if max(values, default=1.0) < _LOW:
        return linear_axis("accuracy", "accuracy", values)
    return share_axis("accuracy", "accuracy")
