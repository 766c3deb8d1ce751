"""Every result as a page and as a card for a notebook, whichever study made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import polars as pl
from markupsafe import Markup

from ..words.manifest import model_name, text_name
from ._calibrate.charts import calibration_chart
from ._calibrate.page import calibration_page
from ._capacity.charts import capacity_chart
from ._capacity.page import capacity_page
from ._compare.charts import pareto_chart
from ._compare.page import compare_page
from ._diff.charts import diff_charts
from ._diff.page import diff_page
from ._diff.table import diff_tables
from ._each.page import reports_page
from ._each.table import reports_rows
from ._lift.charts import plans_chart
from ._lift.page import lift_page
from ._lift.table import lift_tables
from ._notebook import card, finding_list, report_html, run_html, table_of
from ._report.page import report_page
from ._reproduce.figures import specification
from ._reproduce.page import reproduction_page
from ._shared.drawings import svg
from ._shared.page import render
from ._shared.text_table import TextTable
from ._train.charts import train_charts
from ._train.page import train_page
from ._train.table import main_tables, warning_tables
from ._watch.answer import about_line, answer_of
from ._watch.page import watch_page
from ._watch.table import alert_table, values_table

if TYPE_CHECKING:
    from ..results import Result

_MOST_ROWS = 60  # of a table on a card


def page_of(result: Result) -> str:
    """The page of any result."""
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
    about = _about(result.manifest)
    return render("card.html.jinja", study=result.study, about=about, card=Markup(card_of(result)))


def card_of(result: Result) -> str:
    """What a notebook shows of a result: what was measured on what, sentences, charts without a script, the table."""
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
    drawn: str = cards[result.study](result)
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
    return table_of(rows.columns, shown) + _left_out(len(rows))


def _left_out(rows: int) -> str:
    return f"<p>{rows - _MOST_ROWS:,} more rows: .table holds all</p>" if rows > _MOST_ROWS else ""


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
