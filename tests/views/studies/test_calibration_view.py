"""A calibration in the terminal, from made-up numbers."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from made_up_calibration import made_up
from rich.console import Console

from abbe.studies import Calibration
from abbe.views import calibration_table
from abbe.words.finding import Finding


def printed(calibration: Calibration, columns: int) -> str:
    console = Console(width=columns, no_color=True, record=True, file=io.StringIO())
    console.print(calibration_table(calibration))
    return console.export_text()


@pytest.mark.parametrize("columns", [80, 120])
def test_errors_and_zeros_of_every_stage(columns: int) -> None:
    shown = printed(made_up(True), columns)
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert {"0 84 % 4 % 7 %", "1 56 % 3 % 5 %", "0 83 % 22 % 23 %", "1 82 % 16 % 15 %"} <= set(lines)
    assert shown.count("fine-tuned") == 3  # its losses, errors and zeros


def test_without_fine_tuning_there_is_no_such_column() -> None:
    shown = printed(made_up(False), 80)
    assert "fine-tuned" not in shown
    assert {"0 84 % 4 %", "0 83 % 22 %"} <= {" ".join(line.split()) for line in shown.splitlines()}


def test_the_page_holds_sentences_and_tables() -> None:
    page = made_up(True).to_html()
    assert "<h1><bdi>made-up with sparsemax</bdi></h1>" in page
    assert "18.321 (17.890 to 18.752)" in page
    assert "<td>0</td><td>84 %</td><td>4 %</td><td>7 %</td>" in page
    assert "vegaEmbed = " not in page  # no charts, no large script


def test_hostile_words_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    finding = Finding(evil, evil, evil, {evil: evil})
    calibration = replace(made_up(False), spec=evil, findings=(finding,), manifest={"model": {"name": evil}})
    assert evil not in calibration.to_html()
