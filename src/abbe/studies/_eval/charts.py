"""An evaluation as a chart: the difference that each plan makes on each task."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import polars as pl

from ...views import charts as kit
from ...views.charts import Plot, Spec
from ...views.text import plain
from ...views.theme import THEMES, ThemeName
from .result import Evaluation

_ROW, _WIDTH = 22, 430  # pixels of a plan on a task, and of a panel


def charts_of(evaluation: Evaluation, theme: ThemeName) -> dict[str, Spec]:
    """A panel per kind of score: each plan's difference from the baseline on each task, with its interval."""
    table = evaluation.table.filter("counts")
    view = evaluation.view()
    panels = [_panel(evaluation.plans, rows, theme) for rows in table.partition_by("metric", maintain_order=True)]
    about = [*map(plain, view.about), "bars: intervals, paired by document; dashed: no difference"]
    return {
        "differences": kit.finished(
            panels, plain(view.question), about, theme, columns=1, independent=("x", "y", "yOffset")
        )
    }


def _panel(plans: Sequence[str], table: pl.DataFrame, theme: ThemeName) -> Spec:
    colours, metric = THEMES[theme], table["metric"][0]
    rows = kit.rows_of(table)
    ends = kit.numbers(rows, "difference", "difference_low", "difference_high")
    x = kit.near_axis("difference", f"{metric}, plan minus baseline", [0.0, *ends])
    y = kit.names_axis("task", None, table["task"].to_list(), labelLimit=160)
    tips = dict.fromkeys(("plan", "task", "documents", "baseline"), "") | {"score": "under the plan", "difference": ""}
    tips |= {"difference_low": "from", "difference_high": "to", "verdict": ""}
    hues = (colours.selected, colours.claim, colours.third, colours.fourth, colours.bad)
    looks = kit.point_looks("plan", plans, cycle(hues), cycle(kit.SHAPES))
    aside = {"field": "plan", "type": "nominal", "scale": {"domain": plans}}
    plot = Plot(x, y, tips, yOffset=aside, **looks)
    whole = {"y": None, "yOffset": None}
    plot.draw("rule", [{"difference": 0.0}], whole, strokeDash=[5, 3], strokeWidth=1.3, color=colours.control)
    plot.ends(rows, "difference_low", "difference_high", "x", strokeWidth=2).dots(rows, size=80)
    return plot.panel(metric, _WIDTH, _ROW * max(3, len(plans) * len(set(table["task"]))))
