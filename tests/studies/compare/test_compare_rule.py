"""The rule of the recommendation, on planted tables with known answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from inside import compare_rules

from abbe.measures import bootstrap_interval
from abbe.studies import Comparison
from abbe.words.names import BASELINE

judge, COVERAGE = compare_rules.judge, compare_rules.COVERAGE

# Costs nothing, and is no better.
EVEN: dict[str, Any] = {
    "loss": 3.0, "loss_low": 2.9, "loss_high": 3.1, "loss_change": 0.0, "loss_change_low": -0.003,
    "loss_change_high": 0.003, "loss_rise": 0.0, "loss_rise_low": -0.001, "loss_rise_high": 0.001,
    "active": 200.0, "active_low": 190.0, "active_high": 210.0, "separable_gain": 0.0, "separable_gain_low": -0.01,
    "separable_gain_high": 0.01, "capacity_ratio": 1.0, "capacity_ratio_low": 0.9, "capacity_ratio_high": 1.1,
    "needle_accuracy": 0.5, "needle_accuracy_low": 0.4, "needle_accuracy_high": 0.6,
    "needle_gain": 0.0, "needle_gain_low": -0.05, "needle_gain_high": 0.05,
}  # fmt: skip
SPARSE = {"active": 31.2, "active_low": 31.0, "active_high": 31.5, "loss_rise": 0.005, "separable_gain_low": 0.2}
FEWER = {"capacity_ratio_high": 0.5}


def table(own: dict[str, Any] | None = None, **alternatives: dict[str, Any]) -> pl.DataFrame:
    rows = [{"normalizer": BASELINE} | EVEN | (own or {})]
    rows += [{"normalizer": name} | EVEN | new for name, new in alternatives.items()]
    return Comparison.frame().of(rows)


def test_an_even_one_does_not_help() -> None:
    judged, finding = judge(table(even={}), 8, 0.95)
    assert finding.sentence == "None of these helps this model: none of the cheap ones gains anything."
    assert judged.row(0) == ("even", True, False, False, False, False, False)


@pytest.mark.parametrize(
    ("better", "words", "column"),
    [
        ({"loss_change_high": -0.0001}, "it lowers the loss", "lowers_loss"),
        ({"capacity_ratio_high": 0.949}, "it has a smaller capacity", "needs_fewer"),
        ({"needle_gain": 0.05, "needle_gain_low": 0.001}, "it finds more needles", "retrieves"),
    ],
)
def test_each_reason_by_itself_is_enough(better: dict[str, Any], words: str, column: str) -> None:
    judged, finding = judge(table(even={}, good=better), 8, 0.95)
    assert finding.sentence == f"good helps this model: {words}, and its loss changes by +0.0 % (-0.1 to +0.1 %)."
    held = judged.row(1, named=True)
    parts = ("lowers_loss", "separates", "needs_fewer", "retrieves", "helps")
    assert held == {"normalizer": "good", "affordable": True} | {name: name in (column, "helps") for name in parts}
    assert "at most 1 %" in finding.rule
    assert finding.numbers["loss rise, to"] == 0.001


@pytest.mark.parametrize(
    "almost",
    [
        {"loss_change_high": 0.0},
        {"loss_change": -0.1, "loss_change_high": None},
        {"capacity_ratio_high": 0.95},
        {"capacity_ratio": 0.5, "capacity_ratio_high": None},
        {"needle_gain": 0.1, "needle_gain_low": 0.0},
        {"needle_gain": 0.1, "needle_gain_low": None},
        {"needle_accuracy": 0.9, "needle_accuracy_low": 0.8},
        {"separable_gain_low": 0.5},
        FEWER | {"loss_rise_high": 0.0101},
        FEWER | {"loss_rise_high": None},
    ],
)
def test_almost_is_not_enough(almost: dict[str, Any]) -> None:
    judged, finding = judge(table(almost=almost), 8, 0.95)
    assert not judged["helps"][0]
    assert finding.sentence.startswith("None of these helps this model")


def test_the_allowed_loss_is_one_percent() -> None:
    assert judge(table(edge=FEWER | {"loss_rise_high": 0.01}), 8, 0.95)[0]["helps"][0]


def test_more_separability_is_reported_but_is_no_reason() -> None:
    judged, finding = judge(table(sparse=SPARSE), 8, 0.95)
    assert judged["separates"][0]
    assert not judged["helps"][0]
    assert finding.sentence == (
        "sparse is sparser at little cost (31 active tokens instead of 200, loss +0.5 %), "
        "but nothing here shows that it helps."
    )
    assert "separable weight does not count" in finding.rule
    assert finding.numbers["active"] == 31.2


def test_the_sparsest_that_costs_little_is_named() -> None:
    sparser = SPARSE | {"active": 5.55, "active_high": 6.0}
    dear = SPARSE | {"active": 2.0, "loss_rise_high": 0.02}
    assert judge(table(first=SPARSE, second=sparser, dear=dear), 8, 0.95)[1].sentence.startswith(
        "second is sparser at little cost (5.5 active tokens instead of 200"
    )
    assert judge(table(sparse=SPARSE, good=FEWER), 8, 0.95)[1].sentence.startswith("good helps")


@pytest.mark.parametrize("almost", [{"active_high": 190.0}, {"active_high": None}, {"loss_rise_high": 0.0101}])
def test_what_is_not_clearly_sparser_or_cheap_is_not_named(almost: dict[str, Any]) -> None:
    assert judge(table(sparse=SPARSE | almost), 8, 0.95)[1].sentence.startswith("None of these helps this model")


def test_a_single_window_is_too_few() -> None:
    alone = {f"{name}{end}": None for name in ("loss", "loss_change", "loss_rise") for end in ("_low", "_high")}
    _, finding = judge(table(own=alone, good=alone | SPARSE | FEWER | {"needle_gain_low": 0.9}), 1, 0.95)
    assert finding.sentence == ("Too few windows to judge: a single window gives no intervals; take at least 6.")
    assert finding.numbers["good: loss rise"] == 0.005


@pytest.mark.parametrize(("windows", "percent"), [(2, "49"), (3, "72 to 75"), (4, "84 to 87"), (5, "89 to 92")])
def test_fewer_than_six_windows_are_too_few(windows: int, percent: str) -> None:
    judged, finding = judge(table(sparse=SPARSE, good=FEWER), windows, 0.95)
    assert finding.sentence == (
        f"Too few windows to judge: from {windows} windows an interval of nominal 95 % contains the true value in "
        f"{percent} % of cases; take at least 6."
    )
    assert not judged["helps"].any()
    assert judged.row(1, named=True)["needs_fewer"]  # the parts are still told
    assert "Nothing is recommended from fewer than 6 windows" in finding.rule
    assert judge(table(sparse=SPARSE, good=FEWER), 6, 0.95)[1].sentence.startswith("good helps this model")


def test_another_level_needs_other_windows_and_tells_itself() -> None:
    judged, finding = judge(table(good=FEWER), 7, 0.99)
    assert finding.sentence == (
        "Too few windows to judge: the whole range of 7 windows contains the median in less than 99 % of cases; "
        "take at least 8."
    )
    assert not judged["helps"].any()
    assert "All intervals are of nominal 99 %" in finding.rule
    assert "fewer than 8 windows" in finding.rule
    assert "95 %" not in finding.rule + finding.sentence
    assert judge(table(good=FEWER), 8, 0.99)[1].sentence.startswith("good helps this model")
    assert judge(table(good=FEWER), 5, 0.9)[1].sentence.startswith("good helps this model")
    assert not judge(table(good=FEWER), 4, 0.9)[0]["helps"].any()


def test_the_rule_and_the_documents_tell_one_coverage() -> None:
    docs = Path(__file__).parents[3] / "docs" / "explanation"
    words = "90 to 93 % of cases from 8 windows and 91 to 92 % from 6, but in 84 to 87 % from 4 and 49 % from 2"
    assert words in compare_rules.rule(0.95)
    lines = (docs / "intervals.md").read_text(encoding="utf-8").splitlines()
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in lines if line.count("|") == 11}
    for place, windows in enumerate(rows["windows"]):
        if int(windows) in COVERAGE:
            measured = tuple(int(rows[f"{kind} data"][place].strip(" %")) / 100 for kind in ("skewed", "normal"))
            assert COVERAGE[int(windows)] == pytest.approx(measured, abs=0.021 if int(windows) == 2 else 1e-9)


@pytest.mark.quick(2)
@pytest.mark.parametrize(("windows", "expected"), COVERAGE.items())
def test_the_coverage_that_is_reported_was_measured(windows: int, expected: tuple[float, float]) -> None:
    """By many means of skewed and of normal numbers, within the noise."""
    generator = np.random.default_rng(windows)
    skewed = np.exp(0.5 * generator.normal(size=(windows, 4000))) - math.exp(0.125)
    held = []
    for drawn in (skewed, generator.normal(size=(windows, 4000))):
        low, high = bootstrap_interval(torch.from_numpy(drawn), 0.95, 1000, 0)
        held.append(float(((low <= 0) & (high >= 0)).double().mean()))
    assert held == pytest.approx(expected, abs=0.02)


def test_all_too_dear() -> None:
    dear = {"loss": 4.0, "loss_rise": 0.3, "loss_rise_high": 0.4} | FEWER
    _, finding = judge(table(first=dear, second=dear | {"loss_rise": 0.5}), 8, 0.95)
    assert finding.sentence == "None of these helps this model: they cost too much."
    assert finding.numbers["second: loss rise"] == 0.5


def test_most_reasons_win_then_the_least_loss() -> None:
    two = FEWER | {"needle_gain_low": 0.07, "loss": 3.02}
    sentence = judge(table(one=FEWER | {"loss": 2.9}, two=two, later=two | {"loss": 3.01}), 8, 0.95)[1].sentence
    assert sentence.startswith("later helps this model: it has a smaller capacity and finds more needles, and")
    three = two | {"loss_change_high": -0.1, "loss": 3.3}
    sentence = judge(table(two=two, three=three), 8, 0.95)[1].sentence
    assert "it lowers the loss, has a smaller capacity and finds more needles, and its" in sentence
