"""Charts of layers truncated alone: at the longest length, both ways side by side, and over all lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from ...words.numbers import percent
from .._shared.panels import INTERVAL_TIPS, Row, numbers, places_axis, renamed, rows_of, share_axis, tip
from .._shared.series import Spec, log_axis, panel, source
from .._shared.theme import Theme

if TYPE_CHECKING:
    from ...studies import Capacity

_LABELLED = 12  # layers whose numbers can be read beside their points
_LAYER_AXIS = alt.Axis(labelOverlap="parity")
_LAYER = alt.X("layer:O", title="layer", axis=_LAYER_AXIS)
_LAYER_TIPS = [
    *(tip("layer"), tip("capacity", "keys N"), *INTERVAL_TIPS),
    *(tip("separability"), tip("control", "random sets")),
]


def layer_panels(study: Capacity, theme: Theme) -> list[Spec]:
    """Every layer at its equal share of the smallest tau: capacity, separability, and both together, per way."""
    of_layers = study.layers.filter(pl.col("length") == pl.col("length").max())
    if not of_layers.height:
        return []
    ways = study.manifest["settings"]["ways"]
    by_way = {way: rows_of(of_layers.filter(pl.col("way") == way).sort("layer")) for way in ways}
    keys = _keys_axis(rows_of(of_layers))
    panels = [_capacities(rows, keys, f"each layer alone, {way}", theme) for way, rows in by_way.items()]
    panels += [_separabilities(rows, f"separability, {way}", theme) for way, rows in by_way.items()]
    return panels + [_together(rows, keys, f"keys by separability, {way}", theme) for way, rows in by_way.items()]


def layer_growth(study: Capacity, theme: Theme) -> Spec | None:
    """Capacity against the length, a line per layer, for the reported way; None with one length."""
    way = study.reported_way
    rows = rows_of(study.layers.filter(pl.col("way") == way).sort("layer", "length"))
    lengths = sorted({row["length"] for row in rows})
    if len(lengths) < 2:
        return None
    x, y = places_axis("length", "length L (tokens)", lengths), _keys_axis(rows)
    colour = _by_layer(rows, theme)
    tips = [tip("layer"), tip("length", "length L"), tip("capacity", "keys N"), *INTERVAL_TIPS]
    drawn = source(rows)
    layers = [
        drawn.mark_line(strokeWidth=2).encode(x, y, colour, tooltip=tips, detail="layer:N"),
        drawn.mark_point(filled=True, size=34, opacity=1).encode(x, y, colour, tooltip=tips),
        *_numbered([row for row in rows if row["length"] == lengths[-1]], x, y, theme),
    ]
    return panel(layers, f"layers over the length, {way}")


def _keys_axis(rows: Sequence[Row]) -> alt.Y:
    title = f"keys for a rise of {percent(rows[0]['allowed'], 2)}" if rows else ""
    return log_axis("capacity", title, numbers(rows, "capacity", "low", "high"))


def _by_layer(rows: Sequence[Row], theme: Theme) -> alt.Color:
    """From the first layer to the last; a legend only if there are too many for numbers."""
    few = len({row["layer"] for row in rows}) <= _LABELLED
    legend = None if few else alt.Legend(format="d", columns=6)
    return alt.Color("layer:Q", title="layer", scale=alt.Scale(range=list(theme.ramp)), legend=legend)


def _numbered(rows: Sequence[Row], x: alt.X, y: alt.Y, theme: Theme) -> list[alt.Chart]:
    """The number of each layer beside its point, if they are few."""
    text = source(rows).mark_text(dx=7, align="left", color=theme.ink, fontSize=10)
    return [text.encode(x, y, text="layer:N")] if len(rows) <= _LABELLED else []


def _together(rows: Sequence[Row], keys: alt.Y, title: str, theme: Theme) -> Spec:
    """A numbered point per layer: points along a line would mean that geometry predicts the keys needed."""
    known = [row for row in rows if row["separability"] is not None]
    scale = alt.Scale(zero=False, nice=True, padding=12)
    words = f"separability of {rows[0]['separability_n']} tokens"
    x = alt.X("separability:Q", title=words, scale=scale, axis=alt.Axis(tickCount=4))
    points = source(known).mark_point(filled=True, size=60, opacity=1)
    drawn = points.encode(x, keys, _by_layer(rows, theme), tooltip=_LAYER_TIPS)
    return panel([drawn, *_numbered(known, x, keys, theme)], title)


def _capacities(rows: Sequence[Row], keys: alt.Y, title: str, theme: Theme) -> Spec:
    points = source(rows).mark_point(filled=True, size=60, color=theme.selected, opacity=1)
    drawn = [points.encode(_LAYER, keys, tooltip=_LAYER_TIPS)]
    whole = [row for row in rows if row["low"] is not None]
    if whole:
        rule = source(whole).mark_rule(color=theme.selected, strokeWidth=3, opacity=0.45)
        drawn.append(rule.encode(x=_LAYER, y=renamed(keys, "low"), y2="high:Q"))
    return panel(drawn, title)


def _separabilities(rows: Sequence[Row], title: str, theme: Theme) -> Spec:
    x = alt.X("layer:O", title="layer (ticks: random sets)", axis=_LAYER_AXIS)
    shares = share_axis("separability", f"share of {rows[0]['separability_n']} tokens in the ball")
    chart = source(rows)
    bars = chart.mark_bar(color=theme.selected, opacity=0.8).encode(x, shares, tooltip=_LAYER_TIPS)
    ticks = chart.mark_tick(color=theme.ink, thickness=2).encode(x, renamed(shares, "control"))
    return panel([bars, ticks], title)
