"""Reports of many models side by side, in the terminal and on the index page."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from ...words.numbers import with_interval
from .._shared.terminal import TextTable, draw, plain, skipped_lines

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
    measured, models = reports.table["answer"].count(), len(reports.table)
    of = "" if measured == models else f" of {models}"
    return f"How selective is the attention of {measured}{of} {'model' if models == 1 else 'models'}?"


def reports_table(reports: Reports) -> RenderableType:
    """How selective is each of many models?

    The answer per model, then its key numbers with intervals. Many effective tokens mean that attention is dispersed; a
    high separability, that the selected tokens stand apart from the rest.

    Args:
        reports: from `abbe.report_each`.

    Examples:
        >>> small = {"lengths": 32, "windows": 2, "queries": 4, "progress": False}
        >>> reports = abbe.report_each(["embedded"], folder="each", **small)
        >>> from rich import print
        >>> print(abbe.views.reports_table(reports))
        How selective is the attention of 1 model?
        ...
    """
    table = reports_rows(reports)
    numbers = TextTable("", table.columns[:-1], [row[:-1] for row in table.rows])
    answers = [Text(plain(f"{row[0]}: {row[-1]}")) for row in table.rows]
    title = Text(plain(reports_question(reports)), style="bold")
    return Group(title, *answers, draw(numbers, "("), *skipped_lines(reports.manifest))


def reports_rows(
    reports: Reports, named: Callable[[dict[str, Any]], str] = lambda row: str(row["folder"])
) -> TextTable:
    """The models measured; `named` gives the name to show for a row."""
    measured = [row for row in reports.table.iter_rows(named=True) if row["answer"]]
    rows = [(named(row), *(_number(row, name) for name in NUMBERS), str(row["answer"])) for row in measured]
    columns = ("model", *(words for words, _ in NUMBERS.values()), "answer")
    return TextTable("Models", columns, rows, "Means over all heads at the largest length, with their intervals.")


def _number(row: dict[str, Any], name: str) -> str:
    value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    return "-" if value is None else with_interval(value, low, high, NUMBERS[name][1].format)
