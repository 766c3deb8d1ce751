"""Reports of many models side by side, in the terminal and on the index page."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from ...words.numbers import many, with_interval
from .._shared.terminal import new_table, plain, skipped_lines
from .._shared.text_table import TextTable

if TYPE_CHECKING:
    from ...studies import Reports

NUMBERS = {
    "effective_tokens": ("effective tokens", "{:.1f}"),
    "separability": ("separability", "{:.2f}"),
    "critical_n": ("critical N", "{:.0f}"),
    "decay": ("decay exponent", "{:.2f}"),
    "sensitivity": ("worst sensitivity", "{:.3f}"),
}


def reports_question(reports: Reports) -> str:
    return f"How selective is the attention of {many(len(reports.table), 'model')}?"


def reports_table(reports: Reports) -> RenderableType:
    """A row per model, readable from 100 columns on."""
    table = reports_rows(reports)
    drawn = new_table(*table.columns[1:], first=table.columns[0])
    for row in table.rows:
        drawn.add_row(*(Text(cell.replace(" (", "\n(")) for cell in row))
    return Group(Text(plain(reports_question(reports)), style="bold"), drawn, *skipped_lines(reports.manifest))


def reports_rows(reports: Reports, named: Callable[[dict[str, Any]], str] = lambda row: str(row["model"])) -> TextTable:
    """Models that were measured; `named` shows the model of a row."""
    measured = [row for row in reports.table.iter_rows(named=True) if row["answer"]]
    rows = [(named(row), str(row["answer"]), *(_number(row, name) for name in NUMBERS)) for row in measured]
    columns = ("model", "answer", *(words for words, _ in NUMBERS.values()))
    return TextTable("Models", columns, rows, "Means over all heads at the largest length, with their intervals.")


def _number(row: dict[str, Any], name: str) -> str:
    value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    return "-" if value is None else with_interval(value, low, high, NUMBERS[name][1].format)
