"""A report and a run in the terminal and in a notebook: complete, escaped, at any width, whatever is missing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from html import unescape
from typing import Any

import made_up_report as made
import polars as pl
import pytest
from chart_parts import printed
from parsed_page import HOSTILE, Page

from abbe.results import Run
from abbe.studies import Report
from abbe.views import card, page
from abbe.words.finding import NOT_LEARNED, NOTICE, Finding

PLACES = made.grid(2, 3)
MANIFEST = made.MANIFEST | {"text": {"name": "a long name of a book.txt"}}


@pytest.fixture(scope="module")
def report() -> Report:
    return made.report(PLACES, manifest=MANIFEST)


# -- The terminal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_terminal_tells_numbers_verdicts_and_advice(report: Report, width: int) -> None:
    lines = printed(report, width)
    flat = " ".join(lines.split())
    for words in (
        "How selective is the attention of gpt2-like?", "6 heads in 2 layers", "interval 7.1 to 8.8, limit 512",
        "0.4999 (limit 0.5)", "interval 69 to 73 %, control 44 %", made.NUMBERS[0].meaning.split(";")[0],
        "Selecting more than 58 tokens is no better than random.", "Keep at most 32 keys a query", "Verdict", "Advice",
        "skipped: length 2048: the model's context has 1024 tokens",
    ):  # fmt: skip
        assert words in flat


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_terminal_answers_first_with_commands_that_can_be_pasted(report: Report, width: int) -> None:
    lines = printed(report, width)
    flat = " ".join(lines.split())
    assert flat.index(report.answer.sentence) < flat.index("1. ") < flat.index("7.9 tokens")
    pasted = [shlex.split(part) for part in lines.replace("\\\n", "").splitlines() if "  abbe " in part]
    assert pasted == [shlex.split(step.command) for step in report.next_steps()]
    assert len(pasted) == 3


def test_a_diagnosis_is_short_at_80_columns_and_says_where_the_rest_is(report: Report) -> None:
    lines = printed(report.run, 80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert len(lines) < 40
    flat = " ".join(" ".join(lines).split())
    assert flat.startswith("How do the heads of gpt2-like attend?")
    assert "Every measure of every head: heads.parquet and the page." in flat
    assert "self-check error 3.1e-06" in flat
    whole = report.table.filter(pl.col("head").is_null() & (pl.col("length") == 1024))
    for name, label, n in (("separability", "separability", 20), ("effective_tokens", "effective tokens", None)):
        (row,) = whole.filter((pl.col("measure") == name) & pl.col("n").eq_missing(pl.lit(n, pl.Int32))).to_dicts()
        (line,) = [line for line in lines if line.strip().startswith(f"{label} ")]
        numbers = [float(part.replace(",", "")) for part in re.findall(r"(?<![\w.])[\d.,]+(?![\w.])", line)]
        given = [n, row["value"], row["low"], row["high"], row["limit"], row["control"]]
        assert numbers == pytest.approx([value for value in given if value is not None], rel=6e-3)


def test_advice_on_attention_that_was_not_learned_is_taken_back_everywhere() -> None:
    finding = Finding(NOT_LEARNED, f"{NOTICE} The loss is that of guessing.", "a rule.", {"loss": 9.9})
    unlearned, learned = made.small(verdicts=(finding, *made.VERDICTS)), made.small()
    shows: tuple[Callable[[Report], str], ...] = (lambda report: printed(report, 200), page, card)
    for show in shows:
        after = show(unlearned).split("Advice")[-1]
        assert after.index(NOTICE) < after.index("Keep at most 32 keys")
        assert NOTICE not in show(learned)
    assert unlearned.as_json()["learned"] is False
    assert learned.as_json()["learned"] is True


# -- Notebooks --------------------------------------------------------------------------------------------------------


def test_a_card_shows_what_the_terminal_shows(report: Report) -> None:
    text = " ".join(unescape(Page(card(report)).text).split())
    assert text.index(report.answer.sentence) < text.index(made.VERDICTS[0].sentence)
    for number in made.NUMBERS:
        for words in (number.name, number.shown, number.meaning):
            assert words in text
    for finding in (*made.VERDICTS, *made.ADVICE):
        assert finding.sentence in text
    assert "interval 7.1 to 8.8, limit 512" in text
    run = Page(card(report.run)).text
    for words in ("gpt2-like on a long name of a book.txt", "self-check error 3.1e-06", "Which heads select"):
        assert words in run
    assert (report._repr_html_(), report.run._repr_html_()) == (card(report), card(report.run))


def test_names_inside_drawings_do_not_meet() -> None:
    """Many charts stand in one notebook: a name that two of them use would draw one with the colours of the other."""
    used: list[str] = []
    for text in (card(made.report(places).run) for places in (made.grid(2, 3), made.grid(3, 3))):
        names = re.findall(r'\bid="([^"]+)"', text)
        assert names
        assert set(re.findall(r"url\(#([^)]+)\)", text)) == set(names)
        used += names
    assert len(set(used)) == len(used)


def test_a_result_that_cannot_be_drawn_is_a_plain_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> str:
        raise ValueError("no drawing today")

    monkeypatch.setattr(Run, "view", broken)
    shown = made.report(PLACES, manifest=MANIFEST | {"model": {"name": HOSTILE}}).run._repr_html_()
    assert "<svg" not in shown
    assert "<table" in shown
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "changes",
    [
        {"manifest": {}},
        {"manifest": {"model": None, "text": None, "self_check": None, "skipped": None}},
        {"table": made.table(PLACES).clear()},
        {"table": made.table(PLACES).with_columns(value=pl.lit(None, pl.Float64))},
    ],
    ids=["no manifest", "odd manifest", "no rows", "no values"],
)
def test_a_part_may_be_missing(changes: dict[str, Any]) -> None:
    odd = made.report(PLACES, **changes, numbers=(), verdicts=(), advice=())
    for shown in (odd, odd.run):
        assert card(shown).count("<svg") == 1
        assert printed(shown).lstrip().startswith("How ")
