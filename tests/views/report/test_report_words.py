"""The words of a report: names of measures, numbers as a person reads them, and the report in the terminal."""

from __future__ import annotations

import math
import shlex
from typing import Any

import made_up_report as made
import pytest
from rich.console import Console

from abbe.studies import Report
from abbe.views import report_table
from abbe.words.finding import Finding, KeyNumber
from abbe.words.measures import GROUPS, glossary, is_end, measure_words, measures_of
from abbe.words.numbers import interval, number


@pytest.fixture(scope="module")
def report() -> Report:
    return made.report(made.grid(2, 3))


@pytest.mark.parametrize(
    ("name", "label", "group"),
    [
        ("effective_tokens", "effective tokens", 0), ("top_mass", "weight of the selected set", 2),
        ("induction", "weight after the previous copy (induction)", 1),
        ("net_distance", "net distance", 3), ("recall_cosine", "recall by angle", 4),
        ("sensitivity_worst_p95@T=0.25", "sensitivity, worst direction: 95 % of rows below, T = 0.25", 5),
        ("difference_pair_max@T=1,eps=0.1", "difference, second key past the first: largest row, T = 1, step = 0.1", 5),
        ("critical_n@0.01", "critical N at level 0.01", 6), ("something_new", "something new", 6),
    ],
)  # fmt: skip
def test_measures_have_names_for_people(name: str, label: str, group: int) -> None:
    words = measure_words(name)
    assert (words.name, words.label, words.group) == (name, label, GROUPS[group])
    if name != "something_new":
        assert words.meaning.startswith("High")
        assert words.meaning.endswith(".")


def test_every_measure_of_a_run_is_in_the_glossary_once(report: Report) -> None:
    measures = measures_of(report.run.table)
    assert len(measures) == report.run.table["measure"].n_unique()
    groups = [GROUPS.index(words.group) for words in measures]
    assert groups == sorted(groups)
    names = [name for _, entries in glossary(measures) for name, _ in entries]
    assert sorted(names) == sorted({name.partition("@")[0] for name in report.run.table["measure"]})
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (math.nan, "NaN"), (math.inf, "∞"), (-math.inf, "-∞"), (0.0, "0"), (1024.0, "1,024"), (58, "58"),
        (48000, "48,000"), (0.123456, "0.1235"), (2.5e-9, "2.5e-9"), (3e12, "3e+12"),
        (37754.3, "37,754"), (999.96, "1,000"), ("word", "word"), (True, "True"),
    ],
)  # fmt: skip
def test_numbers_as_a_person_reads_them(value: Any, text: str) -> None:
    assert number(value) == text


def test_ends_of_intervals() -> None:
    assert interval(0.12345, 2.0) == "0.123 to 2"
    assert interval(None, 1.0) == interval(1.0, None) == ""
    names = ["decay", "decay_low", "low", "other_high"]
    assert [is_end(name, names) for name in names] == [False, True, False, False]


# -- The terminal -----------------------------------------------------------------------------------------------------


def printed(report: Report, width: int = 100) -> str:
    console = Console(width=width, record=True, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(report_table(report))
    return captured.get()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_terminal_tells_numbers_verdicts_and_advice(report: Report, width: int) -> None:
    lines = printed(report, width)
    assert all(len(line) <= width for line in lines.splitlines())
    flat = " ".join(lines.split())
    for words in (
        "How selective is the attention of gpt2-like?", "6 heads in 2 layers", "7.9 tokens", "(7.1 to 8.8, limit 512)",
        "0.4999 (limit 0.5)", "(69 to 73 %, control 44 %)", made.NUMBERS[0].meaning.split(";")[0],
        "Selecting more than 58 tokens is no better than random.", "Keep at most 32 keys a query", "Verdict", "Advice",
        "skipped: length 2048: the model's context has 1024 tokens",
    ):  # fmt: skip
        assert words in flat


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_terminal_answers_first_with_commands_that_can_be_pasted(report: Report, width: int) -> None:
    named = made.MANIFEST | {"text": {"name": "a long name of a book.txt"}}
    lines = printed(made.report(made.grid(2, 3), manifest=named), width)
    flat = " ".join(lines.split())
    assert flat.index(report.answer.sentence) < flat.index("1. ") < flat.index("7.9 tokens")
    pasted = [shlex.split(part) for part in lines.replace("\\\n", "").splitlines() if "  abbe " in part]
    steps = made.report(made.grid(2, 3), manifest=named).next_steps()
    assert pasted == [shlex.split(step.command) for step in steps]
    assert len(steps) == 3


def test_the_terminal_needs_no_manifest() -> None:
    out = printed(made.small(manifest={"model": None}, numbers=(), verdicts=(), advice=()))
    assert out.startswith("How selective is the attention of this model?")


def test_the_terminal_is_not_steered_by_text() -> None:
    evil = "[bold]x[/bold] \x1b[31mred \u202eabc"
    number = KeyNumber(evil, "m", 1.0, None, None, None, None, evil, evil)
    finding = Finding(evil, evil, evil)
    out = printed(
        made.small(
            numbers=(number,), verdicts=(finding,), advice=(), manifest={"model": {"name": evil}, "skipped": [evil]}
        ),
        160,
    )
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert out.count("[bold]x[/bold]") == 6
    assert "Advice" not in out
