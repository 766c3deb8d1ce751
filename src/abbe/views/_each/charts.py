"""Many reports: their numbers model by model, over checkpoints curves of training, and the index page with links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import altair as alt
from markupsafe import Markup

from .._shared.panels import Row, numbers, renamed, rows_of, tip
from .._shared.series import Spec, finished, linear_axis, panel, source, unchecked
from .._shared.terminal import plain
from .._shared.theme import THEMES, ThemeName
from .._study_page import study_page
from .table import NUMBERS, reports_question, reports_rows

if TYPE_CHECKING:
    from ...studies import Reports


@unchecked
def reports_chart(reports: Reports, theme: ThemeName = "light") -> Spec:
    """A panel per number, a point per model in the given order, with its interval."""
    rows = [row | {"model": plain(str(row["folder"]))} for row in rows_of(reports.table) if row["answer"]]
    panels = [_panel(rows, name, words, theme) for name, (words, _) in NUMBERS.items()]
    about = ["means over all heads at the largest length; bars: intervals from resampling windows"]
    return finished(panels, reports_question(reports), about, theme, columns=3, independent=["x", "y"])


def _panel(rows: list[Row], name: str, words: str, theme: ThemeName) -> Spec | None:
    present = [row for row in rows if row.get(name) is not None]
    if not present:
        return None
    low, high, colour = f"{name}_low", f"{name}_high", THEMES[theme].selected
    x = alt.X("model:N", title=None, sort=[row["model"] for row in rows], axis=alt.Axis(labelLimit=110))
    y = linear_axis(name, words, numbers(present, name, low, high))
    shown = [tip("model", kind="N"), tip(name, words), tip(low, "low"), tip(high, "high")]
    chart = source(present).encode(x=x)
    bars = chart.mark_rule(color=colour, strokeWidth=1.5).encode(y=renamed(y, low), y2=alt.Y2(f"{high}:Q"))
    line = chart.mark_line(color=colour, strokeWidth=1, opacity=0.5).encode(y=y)
    points = chart.mark_point(color=colour, filled=True, size=45, opacity=1).encode(y=y, tooltip=shown)
    return panel([bars, line, points], words)


def reports_page(reports: Reports) -> str:
    """The index page; its links lead to the reports next to it."""
    about = ["Every name in the table links to the report of that model, in the folder next to this page."]
    charts = {theme: {"models": reports_chart(reports, theme)} for theme in THEMES}
    return study_page(reports, reports_question(reports), about, (), [reports_rows(reports, _linked)], charts)


def _linked(row: dict[str, Any]) -> str:
    return Markup('<a href="{}/report.html"><bdi>{}</bdi></a>').format(quote(str(row["folder"])), row["folder"])
