"""The chart of `abbe verify`: marks where the ratios are, and none that the axis would hide."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import abbe
from abbe.studies import Verdict, Verdicts


@pytest.fixture(scope="module")
def verdicts() -> list[Verdict]:
    return abbe.verify(["top-mass", "spectral", "spectral-paper", "mass-law"], trials=40)


def verify_chart(verdicts: list[Verdict]) -> dict[str, Any]:
    return dict(Verdicts(verdicts, 40, 0).view().charts("light")["verify"])


def marks(chart: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The rows of all layers with this mark."""
    layers = [layer for panel in chart["concat"] for layer in panel["layer"] if layer["mark"]["type"] == kind]
    assert layers
    return [
        row for layer in layers for row in chart["datasets"].get(layer["data"].get("name")) or layer["data"]["values"]
    ]


def test_every_statement_has_its_ratios(verdicts: list[Verdict]) -> None:
    chart = verify_chart(verdicts)
    assert [panel["title"] for panel in chart["concat"]] == ["weights", "gradient", "capacity"]
    rows = {row["statement"]: row for row in marks(chart, "point")}
    assert list(rows) == [verdict.name for verdict in verdicts]
    for verdict in verdicts:
        row = rows[verdict.name]
        assert row["worst"] == pytest.approx(verdict.worst, rel=1e-3)
        assert row["typical"] == pytest.approx(verdict.typical, rel=1e-3)
    assert [rows[name]["outcome"] for name in rows] == ["holds", "holds", "refuted", "approximation"]
    assert [rows[name]["source"] for name in rows] == ["this project", "this project", "the paper", "this project"]


def test_a_tight_bound_is_not_drawn_beyond_1(verdicts: list[Verdict]) -> None:
    (row,) = marks(verify_chart([dataclasses.replace(verdicts[0], worst=1 + 1e-12)]), "point")
    assert row["worst"] == 1


def test_a_ratio_of_0_is_drawn_at_the_edge(verdicts: list[Verdict]) -> None:
    chart = verify_chart([dataclasses.replace(verdicts[0], typical=0.0)])
    low, high = chart["concat"][0]["layer"][1]["encoding"]["x"]["scale"]["domain"]
    (row,) = marks(chart, "point")
    assert (row["typical"], row["worst"]) == (low, 1)
    assert high > 1


def test_nothing_checked_is_no_error() -> None:
    assert "0 hold, 0 refuted" in Verdicts([], 1, 0).to_html()


def test_both_themes_are_on_the_page(verdicts: list[Verdict]) -> None:
    page = Verdicts(verdicts, 40, 0).to_html()
    assert page.count("<svg ") == 2
    assert "http:" not in page
