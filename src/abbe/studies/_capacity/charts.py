"""Charts of capacity: loss against kept keys, N* against the length, layers alone beside their geometry."""

from __future__ import annotations

from collections.abc import Sequence

from ...views import charts as kit
from ...views.charts import INTERVAL, SERIES, Channel, Look, Plot, Row, Spec, numbers, rows_of
from ...views.text import plain
from ...views.theme import THEMES, Theme, ThemeName
from ...words.names import DELETION, PAPER_CRITICAL_SHARE, RENORMALISED
from ...words.numbers import percent
from .result import Capacity, of_model, reported_way

_DECADES = 3.0  # of rises: smaller ones, and falls, lie at the lower edge
_DASHES = ((1, 0), (6, 3), (2, 3), (8, 3, 2, 3))
_LABELLED = 12  # layers whose numbers can be read beside their points
_LINE = 0.06  # height of a line of text, as a part of a panel
_TIPS = {"length": "length L", "layer": "", "capacity": "keys N", **INTERVAL}
_TIPS |= {"separability": "", "control": "random sets"}


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
    taus = {percent(tau, 2): 100 * tau for tau in study.manifest["settings"]["taus"]}
    x = kit.places_axis("n", "kept keys N", numbers(rows, "n"), every=False)
    y = kit.log_axis("rise", "rise of the loss (%)", [*numbers(rows, "rise"), *taus.values()], _DECADES)
    lengths = sorted({row["length"] for row in rows})
    shades = theme.shades(len(lengths)) if len(lengths) > 1 else theme.ramp[1:]
    colours = {f"L = {length:,}": shade for length, shade in zip(lengths, shades, strict=True)}
    colour = kit.by_value("shown", colours, legend={"symbolType": "stroke", "columns": 4})
    tips = {"length": "length L", "n": "kept keys N", "rise": "rise (%)", **INTERVAL}
    plot = Plot(x, y, tips, color=colour).band(rows).curve(rows, size=18)
    return plot.level(taus.values(), taus, color=theme.claim).panel(f"truncated, {way}")


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
    plot = Plot(x, y, SERIES | {"length": "", "capacity": "N*", "share": "N*/L", **INTERVAL}, looks)
    return plot.line(shares).ends(rows).curve(rows).panel("growth with the length")


# -- Layers alone, at their equal share of the smallest tau -----------------------------------------------------------


def _keys_axis(rows: Sequence[Row]) -> Channel:
    title = f"keys for a rise of {percent(rows[0]['allowed'], 2)}" if rows else ""
    return kit.log_axis("capacity", title, numbers(rows, "capacity", "low", "high"))


def _layer_growth(rows: Sequence[Row], way: str, theme: Theme) -> Spec | None:
    """Capacity against the length, a line per layer, for the reported way; None with one length."""
    rows = [row for row in rows if row["way"] == way]
    lengths = sorted({row["length"] for row in rows})
    if len(lengths) < 2:
        return None
    # Numbers at the right end, each at least a line of text above the one before.
    spread = numbers(rows, "capacity", "low", "high")
    ends, line, at = [], (max(spread) / min(spread)) ** _LINE, 0.0
    for row in sorted((row for row in rows if row["length"] == lengths[-1]), key=lambda row: row["capacity"]):
        at = max(row["capacity"], at * line)
        ends.append(row | {"at": at})
    plot = Plot(kit.length_axis(lengths), _keys_axis(rows), _TIPS, color=_by_layer(rows, theme))
    plot.line(rows, "layer").dots(rows)
    return _numbered(plot, ends, theme, "at").panel(f"layers over the length, {way}")


def _by_layer(rows: Sequence[Row], theme: Theme) -> Channel:
    """Colours from the first layer to the last; a legend only if there are too many for numbers."""
    few = len({row["layer"] for row in rows}) <= _LABELLED
    legend = None if few else {"format": "d", "columns": 6}
    return {
        "field": "layer",
        "type": "quantitative",
        "title": "layer",
        "scale": {"range": list(theme.ramp)},
        "legend": legend,
    }


def _numbered(plot: Plot, rows: Sequence[Row], theme: Theme, at: str = "capacity") -> Plot:
    """The number of each layer beside its point, if they are few."""
    return plot.text(rows if len(rows) <= _LABELLED else [], "layer", {"y": at}, dx=7, align="left", color=theme.ink)


def _capacities(rows: Sequence[Row], keys: Channel, way: str, theme: Theme) -> Spec:
    plot = Plot(kit.names_axis("layer", "layer", labelOverlap="parity"), keys, _TIPS)
    plot.dots(rows, size=60, color=theme.selected).ends(rows, color=theme.selected)
    return plot.panel(f"each layer alone, {way}")


def _separabilities(rows: Sequence[Row], _: Channel, way: str, theme: Theme) -> Spec:
    x = kit.names_axis("layer", "layer (ticks: random sets)", labelOverlap="parity")
    y = kit.share_axis("separability", f"share of {rows[0]['separability_n']} tokens in the ball")
    plot = Plot(x, y, _TIPS).draw("bar", rows, color=theme.selected, opacity=0.8)
    return plot.draw("tick", rows, {"y": "control"}, color=theme.ink, thickness=2).panel(f"separability, {way}")


def _together(rows: Sequence[Row], keys: Channel, way: str, theme: Theme) -> Spec:
    """A numbered point per layer: points along a line would mean that geometry predicts the keys needed."""
    known = [row for row in rows if row["separability"] is not None]
    words = f"separability of {rows[0]['separability_n']} tokens"
    x = kit.near_axis("separability", words, numbers(known, "separability"))
    plot = Plot(x, keys, _TIPS, color=_by_layer(rows, theme)).dots(known, size=60)
    return _numbered(plot, known, theme).panel(f"keys by separability, {way}")
