"""Charts of capacity: loss against kept keys, N* against the length, layers alone beside their geometry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from ...views import charts as kit
from ...views.charts import Look, Row, Spec, numbers, panel, rows_of, source, tip
from ...views.text import plain
from ...views.theme import THEMES, Theme, ThemeName
from ...words.names import DELETION, PAPER_CRITICAL_SHARE, RENORMALISED
from ...words.numbers import percent
from .result import Capacity, of_model, reported_way

_DECADES = 3.0  # of rises: smaller ones, and falls, lie at the lower edge
_DASHES = ((1, 0), (6, 3), (2, 3), (8, 3, 2, 3))
_LABELLED = 12  # layers whose numbers can be read beside their points
_LINE = 0.06  # height of a line of text, as a part of a panel
_LAYER_AXIS = alt.Axis(labelOverlap="parity")
_KEYS_TIPS = (tip("layer"), tip("capacity", "keys N"), *kit.INTERVAL_TIPS)
_LAYER_TIPS = [*_KEYS_TIPS, tip("separability"), tip("control", "random sets")]


@kit.unchecked
def charts_of(study: Capacity, theme: ThemeName) -> dict[str, Spec]:
    """The rise of the loss against the kept keys per way, N* against the length, and layers if they were measured."""
    colours, settings, view = THEMES[theme], study.manifest["settings"], study.view()
    rises = [_rises(study, way, colours) for way in settings["ways"]]
    rows = rows_of(study.layers.sort("layer", "length"))
    longest = [row for row in rows if row["length"] == settings["layer_lengths"][-1]]
    keys = _keys_axis(longest)
    of_layers = [
        draw([row for row in longest if row["way"] == way], keys, way, colours)
        for draw in ((_capacities, _separabilities, _together) if rows else ())
        for way in settings["ways"]
    ]
    growth, beside = _over_length(study, colours), _layer_growth(rows, reported_way(settings["ways"]), colours)
    # Without growth of layers beside it, growth of the model comes last, so that the two ways stay side by side.
    panels = [*rises, *of_layers, growth] if beside is None else [*rises, growth, beside, *of_layers]
    windows = f"{settings['windows']} windows of each length"
    windows += f"; bands: {percent(settings['level'], 3)} intervals over windows" if settings["windows"] > 1 else ""
    about = [*map(plain, view.about), windows]
    if longest:
        about.append(f"single layers at L = {longest[0]['length']:,}, on {longest[0]['windows']} of the windows")
    scales = ("color", "strokeDash", "strokeWidth", "x", "y")
    return {"capacity": kit.finished(panels, plain(view.question), about, theme, independent=scales)}


# -- The whole model --------------------------------------------------------------------------------------------------


def _rises(study: Capacity, way: str, theme: Theme) -> Spec:
    """The relative rise of the loss against the kept keys; horizontal lines mark the rises allowed."""
    rows = rows_of(of_model(study.curve).filter(way=way))
    for row in rows:
        row |= {name: None if row[name] is None else 100 * row[name] for name in ("rise", "low", "high")}
        row["shown"] = f"L = {row['length']:,}"
    taus = [{"rise": 100 * tau, "shown": percent(tau, 2)} for tau in study.manifest["settings"]["taus"]]
    x = kit.places_axis("n", "kept keys N", numbers(rows, "n"), every=False)
    y = kit.log_axis("rise", "rise of the loss (%)", numbers([*rows, *taus], "rise"), _DECADES)
    lengths = sorted({row["length"] for row in rows})
    shades = theme.shades(len(lengths)) if len(lengths) > 1 else theme.ramp[1:]
    scale = alt.Scale(domain=[f"L = {length:,}" for length in lengths], range=shades)
    colour = alt.Color("shown:N", title=None, scale=scale, legend=alt.Legend(symbolType="stroke", columns=4))
    tips = [tip("length", "length L"), tip("n", "kept keys N"), tip("rise", "rise (%)"), *kit.INTERVAL_TIPS]
    drawn, levels, banded = source(rows), source(taus), [row for row in rows if row["low"] is not None]
    names = levels.mark_text(color=theme.claim, align="right", baseline="bottom", dy=-2, fontSize=10)
    bands = [source(banded).mark_area(opacity=0.18).encode(x, kit.renamed(y, "low"), colour, y2="high:Q")]
    layers = [
        *(bands if banded else ()),
        drawn.mark_line(strokeWidth=2).encode(x, y, colour, tooltip=tips),
        drawn.mark_point(filled=True, size=18, opacity=1).encode(x, y, colour, tooltip=tips),
        levels.mark_rule(color=theme.claim, strokeDash=[5, 3], strokeWidth=1.2).encode(y=y),
        names.encode(x=alt.value("width"), y=y, text=alt.Text("shown:N")),
    ]
    return panel(layers, f"truncated, {way}")


def _over_length(study: Capacity, theme: Theme) -> Spec:
    """N* against L on two logarithmic axes, and the paper's share of L. Ways by colour, taus by dash."""
    settings, hues = study.manifest["settings"], {DELETION: theme.third, RENORMALISED: theme.selected}
    looks = {
        f"{way}, {percent(tau, 2)}": Look(f"{way}, {percent(tau, 2)}", hues[way], _DASHES[number % len(_DASHES)])
        for way in settings["ways"]
        for number, tau in enumerate(settings["taus"])
    }
    paper = f"{percent(PAPER_CRITICAL_SHARE)} of L, the paper's"
    looks[paper] = Look(paper, theme.claim, (3, 3), 1.5)
    rows = [row | {"shown": f"{row['way']}, {percent(row['tau'], 2)}"} for row in rows_of(of_model(study.table))]
    lengths, critical = settings["lengths"], PAPER_CRITICAL_SHARE
    shares = [{"length": length, "capacity": critical * length, "shown": paper} for length in lengths]
    x = kit.length_axis(lengths)
    y = kit.log_axis("capacity", "capacity N* (keys)", numbers([*rows, *shares], "capacity", "low", "high"))
    style = kit.series_style(looks, looks)
    tips = [tip("shown", "series", "N"), tip("length"), tip("capacity", "N*"), tip("share", "N*/L"), *kit.INTERVAL_TIPS]
    layers = [source(shares).mark_line().encode(x, y, **style), *_bars(rows, x, y, style["color"])]
    return panel([*layers, *kit.lines(rows, x, y, style, tips)], "growth with the length")


def _bars(rows: Sequence[Row], x: alt.X, y: alt.Y, colour: Any) -> list[alt.Chart]:
    """Intervals, of the rows that have one."""
    whole = [row for row in rows if row["low"] is not None]
    bars = source(whole).mark_rule(strokeWidth=3, opacity=0.45)
    return [bars.encode(x=x, y=kit.renamed(y, "low"), y2="high:Q", color=colour)] if whole else []


# -- Layers alone, at their equal share of the smallest tau -----------------------------------------------------------


def _keys_axis(rows: Sequence[Row]) -> alt.Y:
    title = f"keys for a rise of {percent(rows[0]['allowed'], 2)}" if rows else ""
    return kit.log_axis("capacity", title, numbers(rows, "capacity", "low", "high"))


def _layer_growth(rows: Sequence[Row], way: str, theme: Theme) -> Spec | None:
    """Capacity against the length, a line per layer, for the reported way; None with one length."""
    rows = [row for row in rows if row["way"] == way]
    lengths = sorted({row["length"] for row in rows})
    if len(lengths) < 2:
        return None
    x, y, colour = kit.length_axis(lengths), _keys_axis(rows), _by_layer(rows, theme)
    drawn, tips = source(rows), [tip("length", "length L"), *_KEYS_TIPS]
    # Numbers at the right end, each at least a line of text above the one before.
    spread = numbers(rows, "capacity", "low", "high")
    ends, line, at = [], (max(spread) / min(spread)) ** _LINE, 0.0
    for row in sorted((row for row in rows if row["length"] == lengths[-1]), key=lambda row: row["capacity"]):
        at = max(row["capacity"], at * line)
        ends.append(row | {"at": at})
    layers = [
        drawn.mark_line(strokeWidth=2).encode(x, y, colour, tooltip=tips, detail="layer:N"),
        drawn.mark_point(filled=True, size=34, opacity=1).encode(x, y, colour, tooltip=tips),
        *_numbered(ends, x, kit.renamed(y, "at"), theme),
    ]
    return panel(layers, f"layers over the length, {way}")


def _by_layer(rows: Sequence[Row], theme: Theme) -> alt.Color:
    """Colours from the first layer to the last; a legend only if there are too many for numbers."""
    few = len({row["layer"] for row in rows}) <= _LABELLED
    legend = None if few else alt.Legend(format="d", columns=6)
    return alt.Color("layer:Q", title="layer", scale=alt.Scale(range=list(theme.ramp)), legend=legend)


def _numbered(rows: Sequence[Row], x: alt.X, y: alt.Y, theme: Theme) -> list[alt.Chart]:
    """The number of each layer beside its point, if they are few."""
    text = source(rows).mark_text(dx=7, align="left", color=theme.ink, fontSize=10)
    return [text.encode(x, y, text="layer:N")] if len(rows) <= _LABELLED else []


def _capacities(rows: Sequence[Row], keys: alt.Y, way: str, theme: Theme) -> Spec:
    x = alt.X("layer:O", title="layer", axis=_LAYER_AXIS)
    points = source(rows).mark_point(filled=True, size=60, color=theme.selected, opacity=1)
    bars = _bars(rows, x, keys, alt.value(theme.selected))
    return panel([points.encode(x, keys, tooltip=_LAYER_TIPS), *bars], f"each layer alone, {way}")


def _separabilities(rows: Sequence[Row], _: alt.Y, way: str, theme: Theme) -> Spec:
    x = alt.X("layer:O", title="layer (ticks: random sets)", axis=_LAYER_AXIS)
    shares = kit.share_axis("separability", f"share of {rows[0]['separability_n']} tokens in the ball")
    chart = source(rows)
    bars = chart.mark_bar(color=theme.selected, opacity=0.8).encode(x, shares, tooltip=_LAYER_TIPS)
    ticks = chart.mark_tick(color=theme.ink, thickness=2).encode(x, kit.renamed(shares, "control"))
    return panel([bars, ticks], f"separability, {way}")


def _together(rows: Sequence[Row], keys: alt.Y, way: str, theme: Theme) -> Spec:
    """A numbered point per layer: points along a line would mean that geometry predicts the keys needed."""
    known = [row for row in rows if row["separability"] is not None]
    scale = alt.Scale(zero=False, nice=True, padding=12)
    words = f"separability of {rows[0]['separability_n']} tokens"
    x = alt.X("separability:Q", title=words, scale=scale, axis=alt.Axis(tickCount=4))
    points = source(known).mark_point(filled=True, size=60, opacity=1)
    drawn = points.encode(x, keys, _by_layer(rows, theme), tooltip=_LAYER_TIPS)
    return panel([drawn, *_numbered(known, x, keys, theme)], f"keys by separability, {way}")
