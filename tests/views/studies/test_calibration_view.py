"""A calibration in the terminal, as charts and as a page, from made-up numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from chart_parts import charts_of, printed
from made_up_calibration import made_up

from abbe.studies import Calibration


@pytest.mark.parametrize("columns", [80, 120])
def test_errors_and_zeros_of_every_stage(columns: int) -> None:
    shown = printed(made_up(True), columns)
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert {"0 84 % 4 % 7 %", "1 56 % 3 % 5 %", "0 83 % 22 % 23 %", "1 82 % 16 % 15 %"} <= set(lines)
    assert shown.count("fine-tuned") == 3  # its losses, errors and zeros


def test_without_fine_tuning_there_is_no_such_column() -> None:
    shown = printed(made_up(False), 80)
    assert "fine-tuned" not in shown
    assert {"0 84 % 4 %", "0 83 % 22 %"} <= {" ".join(line.split()) for line in shown.splitlines()}


def test_the_page_holds_sentences_and_tables() -> None:
    page = made_up(True).to_html()
    assert "What does sparsemax cost made-up" in page
    assert "18.321 (17.890 to 18.752)" in page
    assert "<td>0</td><td>84 %</td><td>4 %</td><td>7 %</td>" in page


def panels(calibration: Calibration, theme: Any = "light") -> dict[str, list[dict[str, Any]]]:
    """The rows drawn in each panel, by its title."""
    chart = charts_of(calibration, theme)["calibration"]
    return {
        panel["title"]: [
            row
            for layer in panel["layer"]
            for row in layer["data"].get("values") or chart["datasets"][layer["data"]["name"]]
        ]
        for panel in chart["concat"]
    }


LOSSES, OUTPUTS, ZEROS = "loss on held-out windows", "change of each layer's outputs", "exact zeros in each layer"


@pytest.mark.parametrize("tuned", [False, True])
def test_a_chart_of_losses_errors_and_zeros(tuned: bool) -> None:
    drawn = panels(made_up(tuned), "dark")
    stages = ["swapped", "calibrated", "fine-tuned"][: 2 + tuned]
    assert {row["stage"] for row in drawn[LOSSES] if "stage" in row} == {"baseline", *stages}
    (swapped, *_) = [row for row in drawn[LOSSES] if row.get("stage") == "swapped" and "low" in row]
    assert (swapped["low"], swapped["high"]) == pytest.approx((18.321 + 17.89, 18.321 + 18.752))  # paired
    for title, values in ((OUTPUTS, [84, 56]), (ZEROS, [83, 82])):
        assert {row["shown"] for row in drawn[title]} == set(stages)
        lines = drawn[title][: len(drawn[title]) // 2]  # points repeat them
        assert [row["value"] for row in lines if row["shown"] == "swapped"] == pytest.approx(values)


def test_a_panel_with_nothing_to_see_is_left_out() -> None:
    result = made_up(False)
    dense = replace(result, table=result.table.with_columns(zeros_before=1e-3, zeros_after=0.0))
    assert list(panels(dense)) == [LOSSES, OUTPUTS]
    assert list(panels(replace(dense, losses=()))) == [OUTPUTS]
