"""How tight is every bound? The verdicts of `abbe verify` as one chart."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import altair as alt

from ._shared.drawings import save_drawings
from ._shared.panels import Row, tip
from ._shared.series import Spec, finished, panel, source, unchecked
from ._shared.theme import THEMES, Theme, ThemeName

if TYPE_CHECKING:
    from ..studies import Verdict

_ROW, _WIDTH = 15, 420  # pixels: height of a statement, width of a panel
_LEAST = 0.01  # left edge of the axis; smaller ratios are drawn there
_RATIO = "measured / bound (bound / measured for lower bounds)"
_SOURCES = ("this project", "the paper")
_SHAPES = {"holds": "circle", "approximation": "diamond", "refuted": "cross"}


@unchecked
def verify_chart(verdicts: Sequence[Verdict], theme: ThemeName = "light") -> Spec:
    """How tight is every bound?

    The ratio of each statement, from the median of random draws to the worst point found. A small median means that a
    bound says little about ordinary inputs; a worst ratio of 1 that it is tight; a larger one that it is false.

    Args:
        verdicts: from `abbe.verify`.
        theme: "light" or "dark".

    Returns:
        A Vega-Lite chart with one panel per section.

    Examples:
        >>> chart = abbe.views.verify_chart(abbe.verify(["top-mass", "spectral-paper"], trials=20))
        >>> [panel["title"] for panel in chart["concat"]]
        ['weights', 'gradient']
    """
    rows = [_row(verdict) for verdict in verdicts]
    largest = max((row["worst"] for row in rows), default=1.0)
    sections = list(dict.fromkeys(row["section"] for row in rows))
    panels = [
        _panel([row for row in rows if row["section"] == one], largest, THEMES[theme], last=one == sections[-1])
        for one in sections
    ]
    about = [
        "from the median of random draws (bar) to the worst point found (mark)",
        "1 is equality; marks to the right of it break the bound",
    ]
    chart = finished(panels, "How tight is every bound?", about, theme, columns=1)
    chart["config"]["legend"] |= {"columns": len(_SHAPES), "layout": {"bottom": {"margin": 30, "anchor": "start"}}}
    # A page may have wider letters than those that the names were measured with.
    return chart | {"spacing": 14, "padding": {"left": 32, "top": 10, "right": 10, "bottom": 10}}


def save_verify_figures(verdicts: Sequence[Verdict], folder: str | os.PathLike[str]) -> list[Path]:
    """Draw the chart of a verification as PNG and SVG, light and dark.

    Args:
        verdicts: from `abbe.verify`.
        folder: for the files; made if it does not exist.

    Returns:
        The paths of the four files.

    Examples:
        >>> paths = abbe.views.save_verify_figures(abbe.verify("top-mass", trials=20), "figures")
        >>> sorted(path.name for path in paths)
        ['verify-dark.png', 'verify-dark.svg', 'verify.png', 'verify.svg']
    """
    return save_drawings(folder, lambda theme: {"verify": verify_chart(verdicts, theme)})


def _row(verdict: Verdict) -> Row:
    holds = "approximation" if verdict.status == "approximation" else "holds"
    return {
        "statement": verdict.name,
        "section": verdict.section,
        "source": _SOURCES[not verdict.source.startswith("this project")],
        "outcome": holds if verdict.holds else "refuted",
        # Four digits: rounding errors must not put a tight bound to the right of 1.
        "worst": max(float(f"{verdict.worst:.4g}"), _LEAST),
        "typical": max(float(f"{verdict.typical:.4g}"), _LEAST),
    }


def _panel(rows: Sequence[Row], largest: float, theme: Theme, last: bool) -> Spec:
    """One section; only the last panel has the labels of the axis that all share."""
    scale = alt.Scale(type="log", domain=[_LEAST, max(2.0, 1.3 * largest)], nice=False)
    axis = alt.Axis(values=[10.0**k for k in range(-2, 7)], format="~g", grid=False, labels=last, ticks=last)
    worst, typical = (
        alt.X(f"{column}:Q", title=_RATIO if last else None, scale=scale, axis=axis) for column in ("worst", "typical")
    )
    names = alt.Axis(grid=True, labelLimit=220, ticks=False, domain=False)
    y = alt.Y("statement:N", title=None, sort=[row["statement"] for row in rows], axis=names)
    hues = alt.Scale(domain=list(_SOURCES), range=[theme.selected, theme.claim])
    colour = alt.Color("source:N", title=None, scale=hues, legend=alt.Legend(symbolType="stroke", symbolSize=420))
    shape = alt.Shape("outcome:N", title=None, scale=alt.Scale(domain=list(_SHAPES), range=list(_SHAPES.values())))
    tips = [tip("statement", kind="N"), tip("source", kind="N"), tip("outcome", kind="N"), tip("worst"), tip("typical")]
    chart = source(rows)
    layers = [
        source([{"worst": 1.0}]).mark_rule(color=theme.ink, strokeDash=[5, 3]).encode(x=worst),
        chart.mark_rule(strokeWidth=1.5, opacity=0.55).encode(x=typical, x2=alt.X2("worst:Q"), y=y, color=colour),
        chart.mark_tick(thickness=2, size=9).encode(x=typical, y=y, color=colour, tooltip=tips),
        chart.mark_point(filled=True, size=46, opacity=1).encode(x=worst, y=y, color=colour, shape=shape, tooltip=tips),
    ]
    return panel(layers, rows[0]["section"], _WIDTH, _ROW * len(rows))
