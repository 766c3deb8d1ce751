"""The charts of a report as Vega-Lite specifications, by name: for its page, for papers and for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._shared.series import Spec
from .._shared.theme import ThemeName
from .charts_alternatives import alternatives_chart
from .charts_gradient import gradient_chart
from .charts_growth import growth_chart
from .charts_head import ball_chart, lengths_chart, sizes_chart
from .charts_map import map_chart
from .charts_table import shown_size

if TYPE_CHECKING:
    from ...studies import Report

__all__ = ["Spec", "chart_specifications", "shown_size"]


def chart_specifications(report: Report, theme: ThemeName) -> dict[str, Spec]:
    """Every chart of the page; what belongs to the chosen head is an empty dataset, which the page fills.

    `rows` of sizes and lengths and `chosen` of growth are rows of `run.table`; `chosen` of gradient holds temperature,
    part, value, low, high, limit; `points` and `circle` of ball are places around the sum of the selected; `chosen` of
    alternatives are rows of `report.alternatives`.
    """
    run = report.run
    return {
        "map": map_chart(run, theme),
        "sizes": sizes_chart(run, theme),
        "lengths": lengths_chart(run, theme),
        "ball": ball_chart(run, theme),
        "growth": growth_chart(run, theme, chosen=True),
        "gradient": gradient_chart(run, report.floors, theme, chosen=True),
        "alternatives": alternatives_chart(run, report.alternatives, theme, chosen=True),
    }
