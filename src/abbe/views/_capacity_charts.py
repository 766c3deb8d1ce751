"""Capacity as charts: loss against kept keys, N* against the length, and layers beside their separability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from ..studies._capacity_findings import amount
from ..studies._capacity_parts import Capacity
from ..studies._reproduction import PAPER_CRITICAL_SHARE
from ._panels import Look, Row, data, numbers, places_axis, renamed, rows_of, series_style, tip
from ._report_charts_parts import Spec, finished, linear_axis, log_axis, panel
from ._theme import THEMES, Theme, ThemeName

_DECADES = 3.0  # of rises: what is smaller, or no rise, lies at the lower edge
_DASHES = ((1, 0), (6, 3), (2, 3), (8, 3, 2, 3))
_TIPS = (tip("low", "interval from"), tip("high", "to"))


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
    words = f"{model['name']} on {text['name']}, {settings['windows']} windows of each length"
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
    tips = [tip("length", "length L"), tip("n", "kept keys N"), tip("rise", "rise (%)"), *_TIPS]
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
    tips = [tip("shown", "series", "N"), tip("length"), tip("capacity", "N*"), tip("share", "N*/L"), *_TIPS]
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
    """Capacity of every layer at its equal share of the smallest tau, and the separability beside it."""
    of_layers = found.table.filter(pl.col("layer").is_not_null() & (pl.col("tau") == pl.col("tau").min()))
    rows = rows_of(of_layers.filter(pl.col("allowed") == pl.col("allowed").min()).sort("layer"))
    if not rows:
        return []
    layer = alt.X("layer:O", title="layer", axis=alt.Axis(labelOverlap="greedy"))
    tips = [tip("layer"), tip("capacity", "keys N"), *_TIPS, tip("separability"), tip("control", "random sets")]
    needed = f"keys for a rise of {amount(rows[0]['allowed'])}"
    shown = f"share of {rows[0]['separability_n']} tokens in the ball"
    return [
        _bars(rows, layer, "capacity", needed, ("low", "high"), theme, tips, "each layer truncated alone"),
        _bars(rows, layer, "separability", shown, (), theme, tips, "separability; dots: random sets"),
    ]


def _bars(
    rows: Sequence[Row], x: alt.X, field: str, title: str, ends: Sequence[str], theme: Theme, tips: Sequence[Any],
    heading: str,
) -> Spec:  # fmt: skip
    y = linear_axis(field, title, numbers(rows, field, *ends, *([] if ends else ["control"])))
    chart = alt.Chart(data(rows))
    layers = [chart.mark_bar(color=theme.selected, opacity=0.8).encode(x, y, tooltip=list(tips))]
    whole = [row for row in rows if ends and all(row[end] is not None for end in ends)]
    if whole:
        rule = alt.Chart(data(whole)).mark_rule(color=theme.ink, strokeWidth=1.5)
        layers.append(rule.encode(x=x, y=renamed(y, ends[0]), y2=f"{ends[1]}:Q"))
    if not ends:
        dots = chart.mark_point(filled=True, size=40, color=theme.control, opacity=1)
        layers.append(dots.encode(x=x, y=renamed(y, "control"), tooltip=list(tips)))
    return panel(layers, heading)
