"""A calibration in the terminal, from made-up numbers."""

from __future__ import annotations

import io
from dataclasses import replace

import polars as pl
import pytest
from rich.console import Console

from abbe.studies import Calibration
from abbe.studies._calibrate.result import HEADS_SCHEMA, PARAMETERS_SCHEMA, Interval, StageLoss
from abbe.views import calibration_table
from abbe.words.finding import Finding


def made_up(tuned: bool) -> Calibration:
    """Two layers of one head each, with another number for every stage."""
    errors = {"error_before": [0.84, 0.56], "error_after": [0.04, 0.03], "error_tuned": [0.07, 0.05]}
    zeros = {"zeros_before": [0.83, 0.82], "zeros_after": [0.22, 0.16], "zeros_tuned": [0.23, 0.15]}
    places = {"layer": [0, 1], "name": ["a", "b"], "head": [0, 0], "spec": ["x", "x"], "energy": [1.0, 2.0]}
    heads = pl.DataFrame(places | errors | zeros, HEADS_SCHEMA)
    if not tuned:
        heads = heads.with_columns(pl.lit(None, pl.Float64).alias(name) for name in ("error_tuned", "zeros_tuned"))
    interval = Interval(18.321, 17.89, 18.752)
    stages = ("baseline", "swapped", "calibrated", "fine-tuned")[: 3 + tuned]
    losses = tuple(StageLoss(stage, interval, interval, interval) for stage in stages)
    manifest = {"model": {"name": "made-up"}, "skipped": []}
    return Calibration("sparsemax", {}, losses, heads, pl.DataFrame(schema=PARAMETERS_SCHEMA), (), manifest, None)


def printed(found: Calibration, columns: int) -> str:
    console = Console(width=columns, no_color=True, record=True, file=io.StringIO())
    console.print(calibration_table(found))
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
