"""The charts of a calibration, from made-up numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from made_up_calibration import made_up

from abbe.views import calibration_chart, save_figures


def drawn_rows(chart: dict[str, Any], panel: str) -> list[dict[str, Any]]:
    """The rows of the panel of that title."""
    (one,) = [one for one in chart["concat"] if one["title"] == panel]
    return [row for layer in one["layer"] for row in _rows(chart, layer["data"])]


def _rows(chart: dict[str, Any], data: dict[str, Any]) -> list[dict[str, Any]]:
    rows = chart["datasets"][data["name"]] if "name" in data else data["values"]
    return list(rows)


@pytest.mark.parametrize("tuned", [False, True])
def test_a_chart_of_losses_errors_and_zeros(tuned: bool) -> None:
    chart = calibration_chart(made_up(tuned), "dark")
    stages = ["swapped", "calibrated", "fine-tuned"][: 2 + tuned]
    losses = drawn_rows(chart, "loss on held-out windows")
    assert {row["stage"] for row in losses} == {"baseline", *stages}
    (swapped, *_) = [row for row in losses if row["stage"] == "swapped" and "low" in row]
    assert (swapped["low"], swapped["high"]) == pytest.approx((18.321 + 17.89, 18.321 + 18.752))  # paired
    for panel, columns in (("change of each layer's outputs", [84, 56]), ("exact zeros in each layer", [83, 82])):
        rows = drawn_rows(chart, panel)
        assert {row["shown"] for row in rows} == set(stages)
        lines = rows[: len(rows) // 2]  # points repeat them
        assert [row["value"] for row in lines if row["shown"] == "swapped"] == pytest.approx(columns)


def test_a_panel_with_nothing_to_see_is_left_out() -> None:
    result = made_up(False)
    dense = dataclasses.replace(result, table=result.table.with_columns(zeros_before=1e-3, zeros_after=0.0))
    assert [one["title"] for one in calibration_chart(dense)["concat"]] == [
        "loss on held-out windows", "change of each layer's outputs",
    ]  # fmt: skip
    without_loss = dataclasses.replace(dense, losses=())
    assert [one["title"] for one in calibration_chart(without_loss)["concat"]] == ["change of each layer's outputs"]


def test_figures_are_written(tmp_path: Path) -> None:
    written = save_figures(made_up(True), tmp_path / "figures")
    assert sorted(path.name for path in written) == [
        "calibration-dark.pdf", "calibration-dark.png", "calibration-dark.svg",
        "calibration.pdf", "calibration.png", "calibration.svg",
    ]  # fmt: skip
    assert all(path.stat().st_size > 1000 for path in written)
    assert "fine-tuned" in (tmp_path / "figures" / "calibration.svg").read_text()
