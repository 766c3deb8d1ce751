"""Axes for what experiments measure: losses over decades, or within a narrow range."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt

from .._shared.panels import share_axis
from .._shared.series import linear_axis, log_axis

_WIDE = 10.0  # times: from there on a logarithmic axis has ticks enough
_LOW = 0.6  # accuracies below it would lie at the bottom of an axis up to 1


def wide_axis(field: str, title: str, values: Sequence[float], decades: float) -> alt.Y:
    """Logarithmic over a wide range, else linear around the values."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) >= _WIDE * min(positive):
        return log_axis(field, title, values, decades)
    return near_axis(field, title, values)


def near_axis(
    field: str, title: str, values: Sequence[float], within: tuple[float, float] = (-math.inf, math.inf)
) -> alt.Y:
    """Linear around the values, not from 0: for points and lines, whose length says nothing."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 0.1
    domain = [max(within[0], low - room), min(within[1], high + room)]
    scale = alt.Scale(domain=domain, nice=False, zero=False, clamp=True)
    return alt.Y(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5))


def accuracy_axis(values: Sequence[float]) -> alt.Y:
    """From 0 to 1, or as far as needed where all are low."""
    if max(values, default=1.0) < _LOW:
        return linear_axis("accuracy", "accuracy", values)
    return share_axis("accuracy", "accuracy")
