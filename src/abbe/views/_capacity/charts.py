"""Capacity as charts and page: loss against kept keys, N* against the length; then the panels of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from ...words.manifest import model_name, text_name
from ...words.numbers import percent
from ...words.paper import PAPER_CRITICAL_SHARE
from .._shared.panels import INTERVAL_TIPS, Look, Row, numbers, places_axis, renamed, rows_of, series_style, tip
from .._shared.series import Spec, finished, lines, log_axis, panel, source, unchecked
from .._shared.terminal import plain
from .._shared.theme import THEMES, Theme, ThemeName
from .._study_page import study_page
from .layer_charts import layer_growth, layer_panels
from .table import capacity_lines, capacity_tables

if TYPE_CHECKING:
    from ...studies import Capacity

_DECADES = 3.0  # of rises: smaller ones, and falls, lie at the lower edge
_DASHES = ((1, 0), (6, 3), (2, 3), (8, 3, 2, 3))


@unchecked
def capacity_chart(study: Capacity, theme: ThemeName = "light") -> Spec:
    """How many tokens does the model need?

    One panel per way with the loss against the kept keys N, then N* against the length, and the layers where they were
    measured. A curve that falls early needs few keys; one that stays high reads widely.

    Args:
        study: from `abbe.capacity`.
        theme: "light" or "dark".

    Examples:
        >>> small = {"lengths": 32, "windows": 2, "grid": "coarse", "layers": False, "progress": False}
        >>> study = abbe.capacity("embedded", tau=0.05, way="renormalised", **small)
        >>> [panel["title"] for panel in abbe.views.capacity_chart(study)["concat"]]
        ['truncated, renormalised', 'growth with the length']
    """
    colours = THEMES[theme]
    rises = [_rises(study, way, colours) for way in study.manifest["settings"]["ways"]]
    growth, of_layers = _over_length(study, colours), layer_panels(study, colours)
    beside = layer_growth(study, colours)
    # Without growth of layers beside it, growth of the model comes last, so that the two ways stay side by side.
    panels = [*rises, *of_layers, growth] if beside is None else [*rises, growth, beside, *of_layers]
    scales = ("color", "strokeDash", "strokeWidth", "x", "y")
    return finished(panels, "How many tokens does the model need?", _about(study), theme, independent=scales)


def _about(study: Capacity) -> list[str]:
    manifest, settings = study.manifest, study.manifest["settings"]
    words = plain(f"{model_name(manifest)} on {text_name(manifest)}, {settings['windows']} windows of each length")
    bands = f"; bands: {percent(settings['level'], 3)} intervals over windows" if settings["windows"] > 1 else ""
    return [f"{words}{bands}", *_about_layers(study), f"loss over {study.scored}"]


def _about_layers(study: Capacity) -> list[str]:
    of_layers = study.table.filter(pl.col("layer").is_not_null())
    if not of_layers.height:
        return []
    at = of_layers.filter(pl.col("length") == pl.col("length").max()).row(0, named=True)
    return [f"single layers at L = {at['length']:,}, on {at['windows']} of the windows"]


def _rises(study: Capacity, way: str, theme: Theme) -> Spec:
    """The relative rise of the loss against the kept keys; horizontal lines mark the rises allowed."""
    rows = rows_of(study.curve.filter(pl.col("layer").is_null() & (pl.col("way") == way)))
    for row in rows:
        row |= {name: None if row[name] is None else 100 * row[name] for name in ("rise", "low", "high")}
        row["shown"] = f"L = {row['length']:,}"
    taus = [{"rise": 100 * tau, "shown": percent(tau, 2)} for tau in study.manifest["settings"]["taus"]]
    x = places_axis("n", "kept keys N", numbers(rows, "n"), every=False)
    y = log_axis("rise", "rise of the loss (%)", [*numbers(rows, "rise"), *numbers(taus, "rise")], _DECADES)
    lengths = sorted({row["length"] for row in rows})
    shades = theme.shades(len(lengths)) if len(lengths) > 1 else theme.ramp[1:]
    scale = alt.Scale(domain=[f"L = {length:,}" for length in lengths], range=shades)
    colour = alt.Color("shown:N", title=None, scale=scale, legend=alt.Legend(symbolType="stroke", columns=4))
    tips = [tip("length", "length L"), tip("n", "kept keys N"), tip("rise", "rise (%)"), *INTERVAL_TIPS]
    drawn, banded = source(rows), [row for row in rows if row["low"] is not None]
    layers = [source(banded).mark_area(opacity=0.18).encode(x, renamed(y, "low"), colour, y2="high:Q")]
    layers += [
        drawn.mark_line(strokeWidth=2).encode(x, y, colour, tooltip=tips),
        drawn.mark_point(filled=True, size=18, opacity=1).encode(x, y, colour, tooltip=tips),
        *_levels(taus, y, theme),
    ]
    return panel(layers if banded else layers[1:], f"truncated, {way}")


def _levels(taus: Sequence[Row], y: alt.Y, theme: Theme) -> list[alt.Chart]:
    levels = source(taus)
    return [
        levels.mark_rule(color=theme.claim, strokeDash=[5, 3], strokeWidth=1.2).encode(y=y),
        levels.mark_text(color=theme.claim, align="right", baseline="bottom", dy=-2, fontSize=10).encode(
            x=alt.value("width"), y=y, text=alt.Text("shown:N")
        ),
    ]


def _over_length(study: Capacity, theme: Theme) -> Spec:
    """N* against L on two logarithmic axes, and the paper's share of L."""
    rows = rows_of(study.table.filter(pl.col("layer").is_null()))
    looks = _looks(study, theme)
    for row in rows:
        row["shown"] = f"{row['way']}, {percent(row['tau'], 2)}"
    lengths = sorted({row["length"] for row in rows})
    paper = [{"length": n, "capacity": PAPER_CRITICAL_SHARE * n, "shown": looks["paper"].label} for n in lengths]
    x = places_axis("length", "length L (tokens)", lengths)
    y = log_axis("capacity", "capacity N* (keys)", numbers([*rows, *paper], "capacity", "low", "high"))
    style = series_style(looks, looks)
    tips = [tip("shown", "series", "N"), tip("length"), tip("capacity", "N*"), tip("share", "N*/L"), *INTERVAL_TIPS]
    ends = [row for row in rows if row["low"] is not None]
    bars = source(ends).mark_rule(opacity=0.45, strokeWidth=3)
    layers = [source(paper).mark_line().encode(x, y, **style)]
    layers += [bars.encode(x=x, y=renamed(y, "low"), y2="high:Q", color=style["color"])] if ends else []
    return panel([*layers, *lines(rows, x, y, style, tips)], "growth with the length")


def _looks(study: Capacity, theme: Theme) -> dict[str, Look]:
    """Ways by colour, taus by dash; the paper's share has its own colour."""
    settings, hues = study.manifest["settings"], {"deletion": theme.third, "renormalised": theme.selected}
    series = {
        f"{way} {tau}": Look(f"{way}, {percent(tau, 2)}", hues[way], _DASHES[place % len(_DASHES)])
        for way in settings["ways"]
        for place, tau in enumerate(settings["taus"])
    }
    return series | {"paper": Look(f"{percent(PAPER_CRITICAL_SHARE)} of L, the paper's", theme.claim, (3, 3), 1.5)}


def capacity_page(study: Capacity) -> str:
    question, *about = capacity_lines(study)
    charts = {theme: {"capacity": capacity_chart(study, theme)} for theme in THEMES}
    return study_page(study, question, about, study.findings, capacity_tables(study), charts)
