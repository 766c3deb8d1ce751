"""Advice on made-up runs whose answers are known."""

from __future__ import annotations

from typing import Any

import pytest
from inside import Lookup, advice, floors, gaining
from synthetic_run import USUAL, alternatives, made_run

from abbe.words.finding import Finding

SPARSE = ("sparsemax", "topk:k=32")
SHARPER = "softmax:temperature=0.7"
NONE = alternatives([])
OWN = (0, "baseline", 0.5, None, None, None)


def findings_of(*heads: dict[str, Any], other: Any = NONE, **options: Any) -> dict[str, Finding]:
    table = Lookup(made_run(heads, **options))
    return {finding.topic: finding for finding in advice(table, floors(table), other)}


def test_the_active_set_is_the_smallest_that_keeps_nine_tenths() -> None:
    finding = findings_of({}, {"top_mass": {1: 0.1, 5: 0.2, 20: 0.3, 100: 0.95}})["active-set size"]
    assert finding.heads == ((0, 1),)
    assert finding.numbers["separability of 20 tokens"] == 0.7


def test_no_set_is_large_enough() -> None:
    flat = {"top_mass": {1: 0.01, 5: 0.05, 20: 0.1, 100: 0.4}}
    finding = findings_of(flat, overall=flat)["active-set size"]
    assert finding.heads == ((0, 0),)
    assert finding.numbers["smallest size that keeps the weight"] is None


def test_the_temperature_floor_is_that_of_the_most_fragile_head() -> None:
    finding = findings_of({}, {"sensitivity_worst_p95": {0.1: 4.5, 0.5: 0.9, 1.0: 0.3}})["temperature floor"]
    assert finding.heads == ((0, 1), (0, 0))
    calm = findings_of({"sensitivity_worst_p95": {0.1: 0.5, 1.0: 0.1}})["temperature floor"]
    assert calm.heads == ()
    assert "temperature floor" not in findings_of({"sensitivity_worst_p95": None})


def test_sinks() -> None:
    finding = findings_of({}, {"sink_mass": (0.6, 0.5, 0.7, None, 0.01)})["sinks"]
    assert finding.heads == ((0, 1),)
    assert findings_of({})["sinks"].heads == ()


@pytest.mark.parametrize(
    ("row", "gains"),
    [
        ((0, "sparsemax", 0.6, 0.1, 0.05, 0.1), True),
        ((0, "sparsemax", 0.6, 0.1, None, 0.1), True),  # one window: no interval
        ((0, "sparsemax", 0.6, 0.049, 0.04, 0.1), False),  # too little
        ((0, "sparsemax", 0.6, 0.1, -0.01, 0.1), False),  # not sure
        ((0, "sparsemax", 0.6, 0.1, 0.05, 0.26), False),  # another output
        ((0, "softmax", 0.6, 0.1, 0.05, 0.1), False),  # not sparse
        ((0, "sparsemax", None, None, None, None), False),
    ],
)
def test_who_gains(row: tuple[Any, ...], gains: bool) -> None:
    table = alternatives([OWN, row])
    assert gaining(table, SPARSE).height == gains
    finding = findings_of({}, other=table)["sparse normalizer"]
    assert finding.heads == (((0, 0),) if gains else ())
    assert ("swapped in without calibration it can raise the loss." in finding.sentence) == gains
    assert finding.rule.endswith("abbe compare and abbe calibrate test it.")


def test_the_best_alternative_of_every_head_largest_gain_first() -> None:
    table = alternatives([
        OWN, (1, *OWN[1:]), (2, *OWN[1:]),
        (0, "sparsemax", 0.6, 0.1, 0.05, 0.2), (0, "topk:k=32", 0.7, 0.2, 0.1, 0.1),
        (1, "sparsemax", 0.9, 0.4, 0.1, 0.1), (1, "topk:k=32", 0.7, 0.2, 0.1, 0.1),
        (2, "sparsemax", 0.5, 0.0, 0.0, 0.1),
        (0, SHARPER, 0.6, 0.1, 0.0, 0.3), (1, SHARPER, 0.6, 0.3, 0.0, 0.1), (2, SHARPER, 0.9, 0.9, 0.9, 0.9),
    ])  # fmt: skip
    best = gaining(table, SPARSE)
    assert best.select("head", "normalizer").rows() == [(1, "sparsemax"), (0, "topk:k=32")]
    finding = findings_of({}, {}, {}, other=table)["sparse normalizer"]
    assert finding.numbers["heads best served by sparsemax"] == 1
    assert finding.numbers["separable weight now, mean over heads"] == 0.5
    # the control is taken from the heads that gain, not from all
    assert finding.numbers[f"gain of those heads with {SHARPER} instead"] == pytest.approx(0.2)
    assert finding.numbers["whose outputs would move by"] == pytest.approx(0.2)


def test_nothing_measured_nothing_advised() -> None:
    assert findings_of({}, other=alternatives([(0, "baseline", None, None, None, None)])).keys() == {
        "active-set size", "temperature floor", "sinks",
    }  # fmt: skip
    table = Lookup(made_run([], overall=dict.fromkeys(USUAL), p_values={}))
    assert advice(table, floors(table), NONE) == ()
