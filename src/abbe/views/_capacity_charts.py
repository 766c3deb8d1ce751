"""Capacity as charts: loss against kept keys, N* against the length, and layers beside their separability."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from ..studies._capacity_findings import amount
from ..studies._capacity_parts import Capacity
from ..studies._reproduction import PAPER_CRITICAL_SHARE
from ._panels import (
    INTERVAL_TIPS,
    Look,
    Row,
    data,
    numbers,
    places_axis,
    renamed,
    rows_of,
    series_style,
    share_axis,
    tip,
)
from ._report_charts_parts import Spec, finished, log_axis, panel
from ._reproduction_table import plain
from ._theme import THEMES, Theme, ThemeName

_DECADES = 3.0  # of rises: what is smaller, or no rise, lies at the lower edge
_DASHES = ((1, 0), (6, 3), (2, 3), (8, 3, 2, 3))
_LAYER = alt.X("layer:O", title="layer", axis=alt.Axis(labelOverlap="greedy"))
_LAYER_TIPS = [
    *(tip("layer"), tip("capacity", "keys N"), *INTERVAL_TIPS),
    *(tip("separability"), tip("control", "random sets")),
]


def capacity_chart(found: Capacity, theme: ThemeName = "light") -> Spec:
    """All panels as one Vega-Lite chart: a curve for each way, growth, layers."""
    colours = THEMES[theme]
    ways = found.manifest["settings"]["ways"]
    panels: list[Spec | None] = [_rises(found, way, colours) for way in ways]
    panels += [_over_length(found, colours), *_layers(found, colours)]
    chart = finished(panels, "How many tokens does the model need?", [_about(found)], theme)
    apart = dict.fromkeys(("color", "strokeDash", "strokeWidth", "x", "y"), "independent")
    return chart | {"resolve": {"scale": apart}}


def _about(found: Capacity) -> str:
    manifest = found.manifest
    model, text, settings = (manifest[key] for key in ("model", "text", "settings"))
    words = plain(f"{model['name']} on {text['name']}, {settings['windows']} windows of each length")
    return f"{words}; bands: {settings['level']:.0%} intervals over windows" if settings["windows"] > 1 else words


def _rises(found: Capacity, way: str, theme: Theme) -> Spec:
    """The relative rise of the loss against the keys that are kept; what is allowed as level lines."""
    rows = rows_of(found.curve.filter(pl.col("layer").is_null() & (pl.col("way") == way)))
    for row in rows:
        row |= {name: None if row[name] is None else 100 * row[name] for name in ("rise", "low", "high")}
        row["shown"] = f"L = {row['length']:,}"
    taus = [{"rise": 100 * tau, "shown": amount(tau)} for tau in found.manifest["settings"]["taus"]]
    x = places_axis("n", "kept keys N", numbers(rows, "n"), every=False)
    y = log_axis("rise", "rise of the loss (%)", [*numbers(rows, "rise"), *numbers(taus, "rise")], _DECADES)
    lengths = sorted({row["length"] for row in rows})
    scale = alt.Scale(domain=[f"L = {length:,}" for length in lengths], range=_between(*theme.ramp, len(lengths)))
    colour = alt.Color("shown:N", title=None, scale=scale, legend=alt.Legend(symbolType="stroke", columns=4))
    tips = [tip("length", "length L"), tip("n", "kept keys N"), tip("rise", "rise (%)"), *INTERVAL_TIPS]
    drawn, banded = alt.Chart(data(rows)), [row for row in rows if row["low"] is not None]
    layers = [alt.Chart(data(banded)).mark_area(opacity=0.18).encode(x, renamed(y, "low"), colour, y2="high:Q")]
    layers += [
        drawn.mark_line(strokeWidth=2).encode(x, y, colour, tooltip=tips),
        drawn.mark_point(filled=True, size=18, opacity=1).encode(x, y, colour, tooltip=tips),
        *_levels(taus, y, theme),
    ]
    return panel(layers if banded else layers[1:], f"truncated by {way}")


def _levels(taus: Sequence[Row], y: alt.Y, theme: Theme) -> list[alt.Chart]:
    lines = alt.Chart(data(taus))
    return [
        lines.mark_rule(color=theme.claim, strokeDash=[5, 3], strokeWidth=1.2).encode(y=y),
        lines.mark_text(color=theme.claim, align="right", baseline="bottom", dy=-2, fontSize=10).encode(
            x=alt.value("width"), y=y, text=alt.Text("shown:N")
        ),
    ]


def _between(first: str, last: str, count: int) -> list[str]:
    """So many colours from one to the other."""
    ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in (first, last)]
    parts = [i / max(1, count - 1) for i in range(count)] if count > 1 else [1.0]
    return ["#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(*ends, strict=True)) for part in parts]


def _over_length(found: Capacity, theme: Theme) -> Spec:
    """N* against L on two logarithmic axes, and the paper's share of L."""
    rows = rows_of(found.table.filter(pl.col("layer").is_null()))
    looks = _looks(found, theme)
    for row in rows:
        row["shown"] = f"{row['way']}, {amount(row['tau'])}"
    lengths = sorted({row["length"] for row in rows})
    paper = [{"length": n, "capacity": PAPER_CRITICAL_SHARE * n, "shown": looks["paper"].label} for n in lengths]
    x = places_axis("length", "length L (tokens)", lengths)
    y = log_axis("capacity", "capacity N* (keys)", numbers([*rows, *paper], "capacity", "low", "high"))
    style = series_style(looks, looks)
    tips = [tip("shown", "series", "N"), tip("length"), tip("capacity", "N*"), tip("share", "N*/L"), *INTERVAL_TIPS]
    drawn, ends = alt.Chart(data(rows)), [row for row in rows if row["low"] is not None]
    bars = alt.Chart(data(ends)).mark_rule(opacity=0.45, strokeWidth=3)
    layers = [alt.Chart(data(paper)).mark_line().encode(x, y, **style)]
    layers += [bars.encode(x=x, y=renamed(y, "low"), y2="high:Q", color=style["color"])] if ends else []
    layers += [
        drawn.mark_line().encode(x, y, tooltip=tips, **style),
        drawn.mark_point(filled=True, size=34, opacity=1).encode(x, y, tooltip=tips, color=style["color"]),
    ]
    return panel(layers, "growth with the length")


def _looks(found: Capacity, theme: Theme) -> dict[str, Look]:
    """Ways by colour, taus by dash; what the paper says in its own colour."""
    settings, hues = found.manifest["settings"], {"deletion": theme.third, "renormalised": theme.selected}
    series = {
        f"{way} {tau}": Look(f"{way}, {amount(tau)}", hues[way], _DASHES[place % len(_DASHES)])
        for way in settings["ways"]
        for place, tau in enumerate(settings["taus"])
    }
    return series | {"paper": Look(f"{PAPER_CRITICAL_SHARE:.0%} of L, the paper's", theme.claim, (3, 3), 1.5)}


def _layers(found: Capacity, theme: Theme) -> list[Spec | None]:
    """Every layer at its equal share of the smallest tau: its separability and its capacity, together and alone."""
    of_layers = found.table.filter(pl.col("layer").is_not_null() & (pl.col("tau") == pl.col("tau").min()))
    rows = rows_of(of_layers.filter(pl.col("allowed") == pl.col("allowed").min()).sort("layer"))
    if not rows:
        return []
    needed, size = f"keys for a rise of {amount(rows[0]['allowed'])}", rows[0]["separability_n"]
    keys = log_axis("capacity", needed, numbers(rows, "capacity", "low", "high"))
    shares = share_axis("separability", f"share of {size} tokens in the ball")
    return [_together(rows, keys, size, theme), _capacities(rows, keys, theme), _separabilities(rows, shares, theme)]


def _together(rows: Sequence[Row], keys: alt.Y, size: int, theme: Theme) -> Spec:
    """Each layer a point with its number: a line of points would mean that geometry says what is needed."""
    known = alt.Chart(data([row for row in rows if row["separability"] is not None]))
    scale = alt.Scale(zero=False, nice=True, padding=12)
    x = alt.X("separability:Q", title=f"separability of {size} tokens", scale=scale, axis=alt.Axis(tickCount=6))
    layers = [
        known.mark_point(filled=True, size=60, color=theme.selected, opacity=1).encode(x, keys, tooltip=_LAYER_TIPS),
        known.mark_text(dx=9, align="left", color=theme.ink, fontSize=11).encode(x, keys, text="layer:N"),
    ]
    return panel(layers, "layers: needed keys and separability")


def _capacities(rows: Sequence[Row], keys: alt.Y, theme: Theme) -> Spec:
    points = alt.Chart(data(rows)).mark_point(filled=True, size=60, color=theme.selected, opacity=1)
    drawn = [points.encode(_LAYER, keys, tooltip=_LAYER_TIPS)]
    whole = [row for row in rows if row["low"] is not None]
    if whole:
        rule = alt.Chart(data(whole)).mark_rule(color=theme.selected, strokeWidth=3, opacity=0.45)
        drawn.append(rule.encode(x=_LAYER, y=renamed(keys, "low"), y2="high:Q"))
    return panel(drawn, "each layer truncated alone")


def _separabilities(rows: Sequence[Row], shares: alt.Y, theme: Theme) -> Spec:
    chart = alt.Chart(data(rows))
    bars = chart.mark_bar(color=theme.selected, opacity=0.8).encode(_LAYER, shares, tooltip=_LAYER_TIPS)
    ticks = chart.mark_tick(color=theme.ink, thickness=2).encode(_LAYER, renamed(shares, "control"))
    return panel([bars, ticks], "separability; ticks: random sets")
