"""A diff as charts: maps of the heads of both models and of their differences, curves over checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ...views import charts as kit
from ...views.charts import INTERVAL, Channel, Plot, Row, Spec, finished, numbers, rows_of
from ...views.heads import gradient, head_map, map_height
from ...views.theme import THEMES, ThemeName
from ...words.measures import measure_words, usual_size
from ...words.numbers import sentence
from .result import Difference

_MAPPED = {"effective_tokens": "dispersion", "separability": "separability"}  # names of maps; any other: "largest"
_CURVES = ("effective_tokens", "max_weight", "separability", "sink_mass", "previous_token", "induction")
# Blue is less, vermillion more; no change has the colour of the background.
_BOTH_WAYS: dict[ThemeName, tuple[str, str, str]] = {
    "light": ("#0b5a94", "#f6f7f8", "#b84a00"),
    "dark": ("#7cc4f0", "#1b2129", "#ff9c57"),
}
_NARROW = 232


def charts_of(diff: Difference, theme: ThemeName) -> dict[str, Spec]:
    """A map of the heads per chosen measure; with more than two models also measures over all of them.

    Dispersion and separability are chosen, preceded by the measure that changed most if it is neither.
    """
    rows = diff.of_heads
    size = usual_size(rows.with_columns(value=pl.col("first")))
    chosen: list[tuple[str, int | None]] = [
        (name, size if rows.filter(pl.col("measure") == name)["n"].is_not_null().any() else None) for name in _MAPPED
    ]
    measured = diff.changed.filter(~pl.col("measure").str.contains("_floor"))  # bounds follow the logits
    if len(measured) and measured["measure"][0] not in _MAPPED:
        chosen.insert(0, (measured["measure"][0], measured["n"][0]))
    drawn = {_MAPPED.get(measure, "largest"): _map(diff, measure, n, theme) for measure, n in chosen}
    if len(diff.names) > 2:
        drawn["curves"] = _curves(diff, theme)
    return {name: chart for name, chart in drawn.items() if chart is not None}


def _map(diff: Difference, measure: str, size: int | None, theme: ThemeName) -> Spec | None:
    """Both models and their difference, where a strong colour is a large change and a dot marks one beyond chance."""
    table = diff.of_heads.filter((pl.col("measure") == measure) & pl.col("n").eq_missing(pl.lit(size, pl.Int32)))
    if table.is_empty():
        return None
    rows = rows_of(table.filter(pl.col("length").eq_missing(pl.col("length").max())))  # null: fitted over all lengths
    words, values = measure_words(measure), numbers(rows, "first", "second")
    low, high = (min(values), max(values)) if max(values) > min(values) else (values[0] - 0.5, values[0] + 0.5)
    most = max((abs(x) for x in numbers(rows, "difference")), default=0.0) or 1.0
    unit = words.unit or words.label
    heat, ink = THEMES[theme].heat, THEMES[theme].ink
    changed = [row for row in rows if row["changed"]]
    change = gradient("difference", "difference", (-most, most), _BOTH_WAYS[theme], ink)
    panels = [
        _cells(rows, name, gradient(column, unit, (low, high), heat, ink), theme)
        for column, name in (("first", diff.names[0]), ("second", diff.names[-1]))
    ]
    panels.append(_cells(rows, "difference (dot: beyond chance)", change, theme, changed))
    at = f"L\u00a0=\u00a0{rows[0]['length']}" if rows[0]["length"] else "over all lengths"
    title = sentence(words.label) + ("" if size is None else f", N = {size}")
    about = [f"{len(changed)} of {len(rows)} heads change beyond chance; {at}"]
    return finished(panels, title, about, theme, columns=3, independent=["color"])


def _cells(rows: Sequence[Row], title: str, colour: Channel, theme: ThemeName, marked: Sequence[Row] = ()) -> Spec:
    names = ("layer", "head", "first", "second", "difference")
    plot = head_map(dict.fromkeys(names, "") | INTERVAL | {"q_value": "q value"})
    # A rim in the colour of the page: ink alone vanishes on the darkest cells.
    dot: Row = {"fill": THEMES[theme].ink, "stroke": THEMES[theme].background, "strokeWidth": 1.5}
    plot.draw("rect", rows, {"color": colour}).draw("point", marked, size=30, opacity=1, **dot)
    return plot.panel(title if len(title) <= 34 else f"…{title[-33:]}", _NARROW, map_height(rows))


def _curves(diff: Difference, theme: ThemeName) -> Spec:
    """The mean over heads at every checkpoint, with its interval; thin lines are heads."""
    table, panels = diff.curves.filter(pl.col("length") == pl.col("length").max()), []
    usual = table.filter(pl.col("n").is_null() | (pl.col("n") == (usual_size(table) or 0))).sort("side")
    colours = THEMES[theme]
    x = kit.names_axis("name", "checkpoint", diff.names, labelAngle=-40, labelLimit=90)
    tips = {"name": "checkpoint", "layer": "", "head": "", "value": "", **INTERVAL}
    for measure in _CURVES:
        rows = [
            row | {"name": diff.names[row["side"]], "at": f"{row['layer']}.{row['head']}"}
            for row in rows_of(usual.filter(pl.col("measure") == measure))
        ]
        mean, heads = ([row for row in rows if (row["head"] is None) == whole] for whole in (True, False))
        if not mean:
            continue
        words = measure_words(measure)
        plot = Plot(x, kit.linear_axis("value", words.unit, numbers(rows, "value") + numbers(mean, "high")), tips)
        plot.line(heads, "at", strokeWidth=0.7, opacity=0.35, color=colours.soft)
        plot.band(mean, color=colours.selected).line(mean, strokeWidth=2.4, color=colours.selected)
        panels.append(plot.dots(mean, size=40, color=colours.selected).panel(words.label, kit.WIDTH - 30))
    about = ["line: mean over heads, band: its interval; thin: single heads"]
    return finished(panels, "Over the checkpoints", about, theme, columns=3)
