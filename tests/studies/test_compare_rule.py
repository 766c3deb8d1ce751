"""The rule of the recommendation, on planted tables with known answers."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from abbe.studies._compare_parts import OWN, SCHEMA
from abbe.studies._compare_rule import judge

# Costs nothing, and is no better.
EVEN: dict[str, Any] = {
    "loss": 3.0, "loss_rise": 0.0, "loss_rise_low": -0.001, "loss_rise_high": 0.001, "told_apart_gain": 0.0,
    "told_apart_gain_low": -0.01, "told_apart_gain_high": 0.01, "capacity_ratio": 1.0, "capacity_ratio_low": 0.9,
    "capacity_ratio_high": 1.1, "needle_accuracy": 0.5, "needle_accuracy_low": 0.4, "needle_accuracy_high": 0.6,
}  # fmt: skip


def table(**alternatives: dict[str, Any]) -> pl.DataFrame:
    rows = [{"normalizer": OWN} | EVEN, *({"normalizer": name} | EVEN | new for name, new in alternatives.items())]
    return pl.DataFrame([dict.fromkeys(SCHEMA) | row for row in rows], schema=SCHEMA)


def test_an_even_one_does_not_help() -> None:
    judged, finding = judge(table(even={}))
    assert finding.sentence == "None of these helps this model: those that cost little select no better."
    assert judged.row(0) == ("even", True, False, False, False, False)


@pytest.mark.parametrize(
    ("better", "words", "column"),
    [
        ({"told_apart_gain_low": 0.0101}, "it tells more of its weight apart", "tells_apart"),
        ({"capacity_ratio_high": 0.949}, "it needs fewer tokens", "needs_fewer"),
        ({"needle_accuracy_low": 0.61, "needle_accuracy_high": 0.8}, "it finds more needles", "retrieves"),
    ],
)
def test_each_reason_by_itself_is_enough(better: dict[str, Any], words: str, column: str) -> None:
    judged, finding = judge(table(even={}, good=better))
    assert finding.sentence == f"good helps this model: {words}, and its loss changes by +0.0 % (-0.1 to +0.1 %)."
    held = judged.row(1, named=True)
    assert held == {"normalizer": "good", "affordable": True} | {
        name: name in (column, "helps") for name in ("tells_apart", "needs_fewer", "retrieves", "helps")
    }
    assert "at most 1 %" in finding.rule
    assert finding.numbers["loss rise, to"] == 0.001


@pytest.mark.parametrize(
    "almost",
    [
        {"told_apart_gain_low": 0.01},
        {"capacity_ratio_high": 0.95},
        {"needle_accuracy_low": 0.6},
        {"told_apart_gain_low": None},
        {"told_apart_gain_low": 0.2, "loss_rise_high": 0.0101},
        {"told_apart_gain_low": 0.2, "loss_rise_high": None},
    ],
)
def test_almost_is_not_enough(almost: dict[str, Any]) -> None:
    judged, finding = judge(table(almost=almost))
    assert not judged["helps"][0]
    assert finding.sentence.startswith("None of these helps this model")


def test_the_allowed_loss_is_one_percent() -> None:
    assert judge(table(edge={"told_apart_gain_low": 0.2, "loss_rise_high": 0.01}))[0]["helps"][0]


def test_all_too_dear() -> None:
    dear = {"loss": 4.0, "loss_rise": 0.3, "loss_rise_high": 0.4, "told_apart_gain_low": 0.3}
    _, finding = judge(table(first=dear, second=dear | {"loss_rise": 0.5}))
    assert finding.sentence == "None of these helps this model: they cost too much."
    assert finding.numbers["second: loss rise"] == 0.5


def test_most_reasons_win_then_the_least_loss() -> None:
    one = {"told_apart_gain_low": 0.2}
    two = one | {"capacity_ratio_high": 0.5, "loss": 3.02}
    sentence = judge(table(one=one | {"loss": 2.9}, two=two, later=two | {"loss": 3.01}))[1].sentence
    assert sentence.startswith("later helps this model: it tells more of its weight apart and needs fewer tokens, and")
    three = two | {"needle_accuracy_low": 0.7, "loss": 3.3}
    sentence = judge(table(two=two, three=three))[1].sentence
    assert "it tells more of its weight apart, needs fewer tokens and finds more needles, and its" in sentence
