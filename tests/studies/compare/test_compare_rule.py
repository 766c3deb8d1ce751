"""The rule of the recommendation, on planted tables with known answers; its sentences stand in `sentences.txt`."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compare_runs import ALONE, DEAR, FEWER, SPARSE, TWO, judged

from abbe.measures import bootstrap_interval

PARTS = ("lowers_loss", "separates", "needs_fewer", "retrieves")


@pytest.mark.parametrize(
    ("better", "column"),
    [
        ({"loss_change_high": -0.0001}, "lowers_loss"),
        ({"capacity_ratio_high": 0.949}, "needs_fewer"),
        ({"needle_gain": 0.05, "needle_gain_low": 0.001}, "retrieves"),
        (FEWER | {"loss_rise_high": 0.01}, "needs_fewer"),
    ],
)
def test_each_reason_by_itself_is_enough(better: dict[str, Any], column: str) -> None:
    judgements, finding = judged(even={}, good=better)
    even, held = judgements.to_dicts()
    assert held == {"normalizer": "good", "affordable": True} | {
        name: name in (column, "helps") for name in (*PARTS, "helps")
    }
    assert even == {"normalizer": "even", "affordable": True} | dict.fromkeys((*PARTS, "helps"), False)
    assert finding.numbers["loss rise, to"] == better.get("loss_rise_high", 0.001)


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
    judgements, finding = judged(almost=almost)
    assert not judgements["helps"][0]
    assert set(finding.numbers) == {f"almost: loss rise{end}" for end in ("", ", from", ", to")}  # nothing is named


@pytest.mark.parametrize(
    ("rows", "active"),
    [
        ({"sparse": SPARSE}, 31.2),  # more separable weight is reported, but is no reason
        ({"first": SPARSE, "second": SPARSE | {"active": 5.55, "active_high": 6.0},
          "dear": SPARSE | {"active": 2.0, "loss_rise_high": 0.02}}, 5.55),
        *(({"sparse": SPARSE | almost}, None) for almost in
          ({"active_high": 190.0}, {"active_high": None}, {"loss_rise_high": 0.0101})),
        ({"sparse": SPARSE, "good": FEWER}, None),
    ],
)  # fmt: skip
def test_the_sparsest_that_costs_little_is_named_if_none_helps(rows: dict[str, Any], active: float | None) -> None:
    judgements, finding = judged(**rows)
    assert finding.numbers.get("active") == active
    assert judgements["separates"][0]
    assert judgements["helps"].any() == ("good" in rows)


@pytest.mark.parametrize(
    ("windows", "level", "enough"),
    [(1, 0.95, False), *((n, 0.95, n > 5) for n in range(2, 7)), (7, 0.99, False), (8, 0.99, True), (4, 0.9, False),
     (5, 0.9, True)],
)  # fmt: skip
def test_too_few_windows_recommend_nothing(windows: int, level: float, enough: bool) -> None:
    judgements, finding = judged(windows, level, sparse=SPARSE, good=FEWER)
    assert judgements["helps"].to_list() == [False, enough]
    assert judgements.row(1, named=True)["needs_fewer"]  # the parts are still told
    assert ("good: loss rise" in finding.numbers) is not enough


def test_a_single_window_has_no_interval_and_helps_nowhere() -> None:
    good = ALONE | SPARSE | FEWER | {"needle_gain_low": 0.9}
    judgements, finding = judged(1, own=ALONE, good=good)
    assert not judgements["helps"].any()
    assert finding.numbers["good: loss rise"] == 0.005


TOLD = (2, 3, 4, 5, 6, 8)


def told(windows: int) -> tuple[float, float]:
    """How often an interval from so many windows is said to contain the truth: in the answer, or in the rule."""
    found = judged(min(windows, 6), good=FEWER)[1]
    from_rule = rf"([0-9]+)(?: to ([0-9]+))? % (?:of cases )?from {windows}\b"
    in_answer = found.sentence, r"true value in ([0-9]+)(?: to ([0-9]+))? % of cases"
    words, pattern = (found.rule, from_rule) if windows > 5 else in_answer
    match = re.search(pattern, words)
    assert match is not None, words
    low, high = match.groups()
    return int(low) / 100, int(high or low) / 100


def test_the_rule_and_the_documents_tell_one_coverage() -> None:
    docs = Path(__file__).parents[3] / "docs" / "explanation"
    words = "90 to 93 % of cases from 8 windows and 91 to 92 % from 6, but in 84 to 87 % from 4 and 49 % from 2"
    assert words in judged(good=FEWER)[1].rule
    lines = (docs / "intervals.md").read_text(encoding="utf-8").splitlines()
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in lines if line.count("|") == 11}
    for place, windows in enumerate(rows["windows"]):
        if int(windows) in TOLD:
            measured = [int(rows[f"{kind} data"][place].strip(" %")) / 100 for kind in ("skewed", "normal")]
            assert told(int(windows)) == pytest.approx(sorted(measured), abs=0.021 if int(windows) == 2 else 1e-9)


@pytest.mark.quick(2)
@pytest.mark.parametrize("windows", TOLD)
def test_the_coverage_that_is_reported_was_measured(windows: int) -> None:
    """By many means of skewed and of normal numbers, within the noise."""
    generator = np.random.default_rng(windows)
    skewed = np.exp(0.5 * generator.normal(size=(windows, 4000))) - math.exp(0.125)
    held = []
    for drawn in (skewed, generator.normal(size=(windows, 4000))):
        low, high = bootstrap_interval(torch.from_numpy(drawn), 0.95, 1000, 0)
        held.append(float(((low <= 0) & (high >= 0)).double().mean()))
    assert sorted(held) == pytest.approx(told(windows), abs=0.02)


def test_all_too_dear() -> None:
    judgements, finding = judged(first=DEAR, second=DEAR | {"loss_rise": 0.5})
    assert not judgements["affordable"].any()
    assert finding.numbers["second: loss rise"] == 0.5


@pytest.mark.parametrize(
    ("rows", "loss"),
    [
        ({"one": FEWER | {"loss_rise": 0.001}, "two": TWO | {"loss_rise": 0.002},
          "later": TWO | {"loss": 3.01, "loss_rise": 0.003}}, 0.003),
        ({"two": TWO, "three": TWO | {"loss_change_high": -0.1, "loss": 3.3, "loss_rise": 0.004}}, 0.004),
    ],
)  # fmt: skip
def test_most_reasons_win_then_the_least_loss(rows: dict[str, Any], loss: float) -> None:
    assert judged(**rows)[1].numbers["loss rise"] == loss
