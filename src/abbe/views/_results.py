"""The page, the notebook card and the figures of any result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from markupsafe import Markup

from ..words.manifest import model_name, text_name
from ._calibrate.charts import calibration_chart, calibration_page
from ._capacity.charts import capacity_chart, capacity_page
from ._compare.charts import pareto_chart
from ._compare.page import compare_charts, compare_page
from ._diff.charts import diff_charts, diff_page
from ._diff.table import diff_tables
from ._each.charts import reports_chart, reports_page
from ._each.table import reports_rows
from ._lift.charts import lift_charts, lift_page, plans_chart
from ._lift.table import lift_tables
from ._notebook import card, finding_list, report_html, run_html, table_of
from ._report.charts_growth import growth_chart
from ._report.charts_map import map_chart
from ._report.figures import figures
from ._report.page import report_page
from ._reproduce.figures import specification
from ._reproduce.page import ordered, reproduction_page
from ._shared.drawings import save_drawings, svg
from ._shared.page import render
from ._shared.series import Spec
from ._shared.terminal import TextTable
from ._shared.theme import ThemeName
from ._train.charts import train_charts, train_page
from ._train.table import main_tables, warning_tables
from ._view import card as card_of_view
from ._view import figures as figures_of_view
from ._view import page as page_of_view
from ._watch.answer import about_line, alert_table, answer_of, values_table
from ._watch.charts import watch_chart
from ._watch.page import watch_page

if TYPE_CHECKING:
    from ..results import Result

_MOST_ROWS = 60  # of a table on a card


def page_of(result: Result) -> str:
    """The page of any result: one self-contained HTML file that works offline.

    `Result.to_html` writes it.

    Args:
        result: of any study.

    Returns:
        The text of the file.

    Examples:
        >>> run = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False)
        >>> abbe.views.page_of(run)[:15]
        '<!doctype html>'
    """
    pages: dict[str, Callable[[Any], str]] = {
        "report": report_page,
        "report --each": reports_page,
        "reproduce": reproduction_page,
        "compare": compare_page,
        "capacity": capacity_page,
        "calibrate": calibration_page,
        "lift": lift_page,
        "diff": diff_page,
        "watch": watch_page,
        "train": train_page,
    }
    if (page := pages.get(result.study)) is not None:
        return page(result)
    if result.study not in _CHARTS:
        return page_of_view(result)
    about = _about(result.manifest)
    return render("card.html.jinja", study=result.study, about=about, card=Markup(card_of(result)))


def save_figures(result: Result, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw the charts of any result as PNG and SVG, light and dark.

    They are those of its page, which says what high and low values mean.

    Args:
        result: of any study.
        folder: for the files; created if missing.

    Returns:
        The paths of the files.

    Raises:
        AbbeError: the folder is a file.

    Examples:
        >>> run = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False)
        >>> sorted(path.name for path in abbe.views.save_figures(run, "figures"))[:4]
        ['growth-dark.png', 'growth-dark.svg', 'growth.png', 'growth.svg']
    """
    if result.study not in _CHARTS:
        return figures_of_view(result, folder)
    charts = _CHARTS[result.study]
    return save_drawings(folder, lambda theme: charts(result, theme))


def _reproduced(result: Any, theme: ThemeName) -> dict[str, Spec]:
    return {f"figure-{figure.name}": specification(figure, theme) for figure in ordered(result)}


_CHARTS: dict[str, Callable[[Any, ThemeName], Mapping[str, Spec]]] = {
    "diagnose": lambda run, theme: {"map": map_chart(run, theme), "growth": growth_chart(run, theme)},
    "report": figures,
    "report --each": lambda reports, theme: {"models": reports_chart(reports, theme)},
    "reproduce": _reproduced,
    "compare": lambda one, theme: {f"compare-{name}": made for name, made in compare_charts(one, theme).items()},
    "capacity": lambda capacity, theme: {"capacity": capacity_chart(capacity, theme)},
    "calibrate": lambda calibration, theme: {"calibration": calibration_chart(calibration, theme)},
    "lift": lift_charts,
    "diff": diff_charts,
    "watch": lambda training, theme: {"watch": watch_chart(training, theme)},
    "train": train_charts,
}


def card_of(result: Result) -> str:
    """What a notebook shows of a result.

    What was measured on what, findings, charts as SVG without a script, and the main table.

    Args:
        result: of any study.

    Returns:
        HTML to be put into a page.

    Examples:
        >>> run = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False)
        >>> abbe.views.card_of(run)[:4]
        '<div'
    """
    cards: dict[str, Any] = {
        "diagnose": run_html,
        "report": report_html,
        "report --each": _reports,
        "reproduce": _reproduction,
        "capacity": _capacity,
        "compare": _comparison,
        "calibrate": _calibration,
        "lift": _lift,
        "diff": _difference,
        "watch": _training,
        "train": _experiment,
    }
    drawn: str = cards.get(result.study, card_of_view)(result)
    return drawn


def _reports(result: Any) -> str:
    rows = reports_rows(result)
    return card([table_of(rows.columns, rows.rows)])


def _capacity(result: Any) -> str:
    parts = [_measured(result), finding_list("What it means", result.findings), svg(capacity_chart(result))]
    model = result.table.filter(pl.col("layer").is_null())
    columns = ("length", "way", "tau", "capacity", "low", "high", "share", "separability", "control")
    return card([*parts, _table(model.select(columns))])


def _comparison(result: Any) -> str:
    parts = [_measured(result), finding_list("Recommendation", [result.recommendation])]
    columns = ("normalizer", "loss", "loss_change", "effective_tokens", "active", "capacity", "needle_accuracy")
    return card([*parts, svg(pareto_chart(result, "light")), _table(result.table.select(columns))])


def _calibration(result: Any) -> str:
    rows = [
        {"stage": one.stage, "loss": one.loss.value, "over the baseline": one.over_baseline and one.over_baseline.value}
        for one in result.losses
    ]
    losses = pl.DataFrame(rows, schema={"stage": pl.String, "loss": pl.Float64, "over the baseline": pl.Float64})
    parts = [_measured(result), finding_list("What it means", result.findings), svg(calibration_chart(result))]
    return card([*parts, _table(losses), _table(result.layers)])


def _lift(result: Any) -> str:
    parts = [_measured(result), finding_list("What it means", result.findings), svg(plans_chart(result))]
    return card([*parts, *(_text_table(one) for one in lift_tables(result)[:2])])


def _difference(result: Any) -> str:
    """What changed, the first map, and the largest changes."""
    drawn = [svg(chart) for chart in list(diff_charts(result, "light").values())[:1]]
    tables = [_text_table(one) for one in diff_tables(result, _MOST_ROWS // 4)]
    return card([_measured(result), finding_list("What changed", result.findings), *drawn, *tables])


def _training(result: Any) -> str:
    """What happened, the latest alerts, and each measure over all heads at the last step."""
    sentences = answer_of(result).sentence, ", ".join(about_line(result))
    parts = [_measured(result), *(f"<p>{escape(words)}</p>" for words in sentences if words)]
    return card([*parts, *(_text_table(one) for one in (alert_table(result, _MOST_ROWS), values_table(result)))])


def _experiment(result: Any) -> str:
    """The judged statements, the first chart, what the best rates reach, and what warned."""
    first = next(iter(train_charts(result).values()))
    parts = [_measured(result), finding_list("What it means", result.findings), svg(first)]
    return card([*parts, *(_text_table(one) for one in (*main_tables(result), *warning_tables(result)))])


def _text_table(table: TextTable) -> str:
    if not table.rows:
        return ""
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    return f"<p><b>{escape(table.title)}</b></p>" + table_of(table.columns, table.rows) + note


def _reproduction(result: Any) -> str:
    charts = [svg(specification(figure, "light")) for figure in result.figures.values()]
    return card([_measured(result), _table(result.table.select("figure", "topic", "answer", "measured")), *charts])


def _measured(result: Result) -> str:
    return f'<p style="margin:0 0 8px"><b>abbe {escape(result.study)}</b>: {escape(_about(result.manifest))}</p>'


def _about(manifest: Mapping[str, Any]) -> str:
    return f"{model_name(manifest)} on {text_name(manifest)}"


def _table(rows: pl.DataFrame) -> str:
    shown = [[_cell(value) for value in row] for row in rows.head(_MOST_ROWS).iter_rows()]
    left = len(rows) - _MOST_ROWS
    return table_of(rows.columns, shown) + (f"<p>{left:,} more rows: .table holds all</p>" if left > 0 else "")


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
