"""A diff as charts and page: maps of the heads of both models and of their differences, curves over checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from ...words.measures import measure_words, usual_size
from ...words.numbers import sentence
from .._shared.panels import WIDTH, Row, numbers, rows_of, tip
from .._shared.series import Spec, finished, panel, source, unchecked
from .._shared.theme import THEMES, ThemeName
from .._study_page import study_page
from .table import diff_lines, diff_tables, head_table

if TYPE_CHECKING:
    from ...studies import Difference

_MAPPED = {"effective_tokens": "dispersion", "separability": "separability"}  # names of maps; any other: "largest"
_CURVES = ("effective_tokens", "max_weight", "separability", "sink_mass", "previous_token", "induction")
# Blue is less, vermillion more; no change has the colour of the background.
_BOTH_WAYS: dict[ThemeName, tuple[str, str, str]] = {
    "light": ("#0b5a94", "#f6f7f8", "#b84a00"),
    "dark": ("#7cc4f0", "#1b2129", "#ff9c57"),
}
_CELL, _NARROW = 26, 232


@unchecked
def diff_charts(diff: Difference, theme: ThemeName = "light") -> dict[str, Spec]:
    """Which heads changed from one model to the other?

    A map of the heads per chosen measure, for both models and for the difference, where a strong colour is a large
    change and a dot marks one beyond chance. With more than two models also the measures over all of them, as `curves`.

    Args:
        diff: from `abbe.diff`.
        theme: "light" or "dark".

    Returns:
        Vega-Lite specifications by name.

    Examples:
        >>> half = abbe.load("embedded", dtype="bfloat16")
        >>> diff = abbe.diff("embedded", half, lengths=32, windows=2, queries=4, sizes=5, progress=False)
        >>> list(abbe.views.diff_charts(diff))
        ['largest', 'dispersion', 'separability']
    """
    charts = {}
    for measure, size in _chosen(diff):
        chart = _map(diff, measure, size, theme)
        if chart is not None:
            charts[_MAPPED.get(measure, "largest")] = chart
    if len(diff.names) > 2:
        charts["curves"] = _curves(diff, theme)
    return charts


def _chosen(diff: Difference) -> list[tuple[str, int | None]]:
    """Dispersion and separability, preceded by the measure that changed most if it is neither."""
    rows = diff.of_heads
    size = usual_size(rows.with_columns(value=pl.col("first")))
    sizes = {
        name: size if rows.filter(pl.col("measure") == name)["n"].is_not_null().any() else None for name in _MAPPED
    }
    chosen = [(name, sizes[name]) for name in _MAPPED]
    measured = diff.changed.filter(~pl.col("measure").str.contains("_floor"))  # bounds follow the logits
    if len(measured):
        most = measured.row(0, named=True)
        if most["measure"] not in _MAPPED:
            chosen.insert(0, (most["measure"], most["n"]))
    return chosen


def _map(diff: Difference, measure: str, size: int | None, theme: ThemeName) -> Spec | None:
    of_size = pl.col("n").is_null() if size is None else pl.col("n") == size
    table = diff.of_heads.filter((pl.col("measure") == measure) & of_size)
    if table.is_empty():
        return None
    rows = rows_of(table.filter(pl.col("length").eq_missing(pl.col("length").max())))  # null: fitted over all lengths
    words = measure_words(measure)
    label = sentence(words.label) + ("" if size is None else f", N = {size}")
    names = diff.names[0], diff.names[-1]
    ends = _ends(numbers(rows, "first", "second"))
    unit, panels = words.unit or words.label, []
    scale = alt.Scale(domain=[ends[0], sum(ends) / 2, ends[1]], range=list(THEMES[theme].heat), interpolate="lab")
    for column, name in zip(("first", "second"), names, strict=True):
        colour = alt.Color(f"{column}:Q", title=unit, legend=_legend(theme, unit), scale=scale)
        panels.append(_cells(rows, column, name, colour, theme))
    most = max((abs(x) for x in numbers(rows, "difference")), default=0.0) or 1.0
    scale = alt.Scale(domain=[-most, 0, most], range=list(_BOTH_WAYS[theme]), interpolate="lab")
    colour = alt.Color("difference:Q", title="difference", legend=_legend(theme, "difference"), scale=scale)
    panels.append(_cells(rows, "difference", "difference (dot: beyond chance)", colour, theme, dots=True))
    count = sum(bool(row["changed"]) for row in rows)
    at = f"L\u00a0=\u00a0{rows[0]['length']}" if rows[0]["length"] else "over all lengths"
    about = [f"{count} of {len(rows)} heads change beyond chance; {at}"]
    return finished(panels, label, about, theme, columns=3, independent=["color"])


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The range of both maps together, never empty."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _legend(theme: ThemeName, title: str) -> alt.Legend:
    return alt.Legend(
        title=title, titleColor=THEMES[theme].ink, titleFontWeight="normal", gradientLength=160, format=".3~g",
        tickCount=4,
    )  # fmt: skip


def _cells(
    rows: Sequence[Row], column: str, title: str, colour: alt.Color, theme: ThemeName, *, dots: bool = False
) -> Spec:
    gap, axis = alt.Scale(paddingInner=0.04), alt.Axis(labelOverlap="parity", ticks=False, domain=False)
    x, y = alt.X("head:O", title="head", scale=gap, axis=axis), alt.Y("layer:O", title="layer", scale=gap, axis=axis)
    tips = [
        tip("layer"), tip("head"), tip("first"), tip("second"), tip("difference"), tip("low", "interval from"),
        tip("high", "to"), tip("q_value", "q value"),
    ]  # fmt: skip
    layers = [source(list(rows)).mark_rect().encode(x=x, y=y, color=colour, tooltip=tips)]
    changed = [row for row in rows if row["changed"]]
    if dots and changed:
        # A rim in the colour of the page: ink alone vanishes on the darkest cells.
        ink, rim = THEMES[theme].ink, THEMES[theme].background
        marks = source(changed).mark_point(size=30, opacity=1, fill=ink, stroke=rim, strokeWidth=1.5)
        layers.append(marks.encode(x=x, y=y, tooltip=tips))
    height = max(60, min(420, _CELL * len({row["layer"] for row in rows})))
    shown = title if len(title) <= 34 else f"…{title[-33:]}"
    return panel(layers, shown, _NARROW, height)


def _curves(diff: Difference, theme: ThemeName) -> Spec:
    """The mean over heads at every checkpoint, with its interval; thin lines are heads."""
    table = diff.curves.filter(pl.col("length") == pl.col("length").max())
    size = usual_size(table)
    panels = [_curve(table, measure, size, diff.names, theme) for measure in _CURVES]
    about = ["line: mean over heads, band: its interval; thin: single heads"]
    return finished(panels, "Over the checkpoints", about, theme, columns=3)


def _curve(table: pl.DataFrame, measure: str, size: int | None, names: Sequence[str], theme: ThemeName) -> Spec | None:
    of_size = pl.col("n").is_null() | (pl.col("n") == (size or 0))
    rows = rows_of(table.filter((pl.col("measure") == measure) & of_size).sort("side"))
    rows = [row | {"name": names[row["side"]], "at": f"{row['layer']}.{row['head']}"} for row in rows]
    mean, heads = ([row for row in rows if (row["head"] is None) == whole] for whole in (True, False))
    if not mean:
        return None
    colours, words = THEMES[theme], measure_words(measure)
    x = alt.X("name:N", title="checkpoint", sort=list(names), axis=alt.Axis(labelAngle=-40, labelLimit=90))
    y = alt.Y("value:Q", title=words.unit, axis=alt.Axis(tickCount=5))
    tips = [tip("name", "checkpoint", "N"), tip("value"), tip("low", "interval from"), tip("high", "to")]
    single = source(heads).mark_line(strokeWidth=0.7, opacity=0.35, color=colours.soft)
    band = source(mean).mark_area(opacity=0.25, color=colours.selected)
    line = source(mean).mark_line(
        strokeWidth=2.4, color=colours.selected, point={"color": colours.selected, "size": 40}
    )
    layers = [
        single.encode(x=x, y=y, detail=alt.Detail("at:N"), tooltip=[tip("layer"), tip("head"), *tips[:2]]),
        band.encode(x=x, y=alt.Y("low:Q", title=words.unit), y2=alt.Y2("high:Q")),
        line.encode(x=x, y=y, tooltip=tips),
    ]
    return panel(layers, words.label, WIDTH - 30)


def diff_page(diff: Difference) -> str:
    question, *about = diff_lines(diff)
    charts = {theme: diff_charts(diff, theme) for theme in THEMES}
    return study_page(diff, question, about, diff.findings, [head_table(diff), *diff_tables(diff)], charts)
