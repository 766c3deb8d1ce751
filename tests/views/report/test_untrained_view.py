"""A report on attention that has not been learned: its advice is taken back wherever it is shown."""

from __future__ import annotations

import io

import made_up_report as made
from inside import report_page
from rich.console import Console

from abbe.studies import Report
from abbe.views import report_table
from abbe.words.finding import NOT_LEARNED, NOTICE, Finding


def test_terminal_page_and_notebook_say_it_beside_the_advice() -> None:
    finding = Finding(NOT_LEARNED, f"{NOTICE} The loss is that of guessing.", "a rule.", {"loss": 9.9})
    unlearned, learned = made.small(verdicts=(finding, *made.VERDICTS)), made.small()
    for show in (_terminal, report_page, lambda report: report._repr_html_()):
        after = show(unlearned).split("Advice")[-1]
        assert NOTICE in after
        assert after.index(NOTICE) < after.index("Keep at most 32 keys")
        assert NOTICE not in show(learned)
    assert unlearned.as_json()["learned"] is False
    assert learned.as_json()["learned"] is True


def _terminal(report: Report) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(report_table(report))
    return console.export_text()
