"""Tables of an experiment, by hand."""

from __future__ import annotations

import math

import polars as pl
import pytest
from lab_cases import choice, small
from lab_parts import BROKEN, GOOD, NOISY, RISEN, SLOW, STEPS, part, seed
from scipy import stats

from abbe.lab.result import (
    alert_table,
    best_run,
    curve_table,
    length_table,
    mean_interval,
    rate_sensitivities,
    run_table,
    summary_table,
)  # fmt: skip
from abbe.lab.run import train


def test_half_step_failed_and_diverged() -> None:
    runs = [seed(0, GOOD), seed(1, SLOW), seed(2, RISEN), seed(3, BROKEN, loss=None), seed(4, NOISY)]
    table = run_table([part(0.1, *runs)])
    assert table["half_step"].to_list() == [5, None, None, None, None]
    assert table["train_loss"].to_list() == [0.75, 3.25, 5.5, None, 4.1]  # steps after 8 of 10
    assert table["failed"].to_list() == [False, True, True, True, True]
    # One batch is a noisy first loss: a run that learns nothing has not diverged.
    assert table["diverged"].to_list() == [False, False, True, True, False]
    assert table["largest_logit"].to_list() == [7.0] * 5
    assert table["max_logit"].to_list() == [3.0] * 5  # of the last step


def test_a_run_that_is_not_finite_when_tested_has_failed() -> None:
    table = run_table([part(0.1, seed(0, GOOD, loss=None))])
    assert table["failed"].to_list() == [True]


def test_best_rate_and_sensitivity() -> None:
    """Losses are cut off at the first one: by seed 0.75, 4 and 3.25, and 0.75, 3.25 and 4 (of a broken run)."""
    parts = [
        part(0.1, seed(0, GOOD), seed(1, GOOD)),
        part(1.0, seed(0, RISEN), seed(1, SLOW)),
        part(10.0, seed(0, SLOW), seed(1, BROKEN, loss=None)),
    ]
    table = run_table(parts)
    assert best_run(table) == 0
    mean = (0.75 + 4 + 3.25) / 3 - 0.75
    assert dict(rate_sensitivities(table)) == pytest.approx({0: mean, 1: mean})
    summary = summary_table(table, 0.95).row(0, named=True)
    assert summary["best_rate"] == 0.1
    assert (summary["runs"], summary["failed"], summary["diverged"]) == (6, 4, 2)
    assert summary["rate_sensitivity"] == pytest.approx(mean)


def test_a_rate_with_one_broken_seed_is_not_the_best() -> None:
    parts = [part(0.1, seed(0, SLOW), seed(1, SLOW)), part(1.0, seed(0, [4.0, 3.0, 2.9, 2.9]), seed(1, BROKEN))]
    assert best_run(run_table(parts)) == 0  # 3.25 against (2.9 + 4) / 2


def test_each_choice_has_a_row_of_its_own() -> None:
    parts = [
        part(0.1, seed(0, SLOW)),
        part(1.0, seed(0, GOOD)),
        part(0.1, seed(0, GOOD), temperature="0.1"),
        part(0.1, seed(0, GOOD), temperature="0.1", compensated=True),
    ]
    summary = summary_table(run_table(parts), 0.95)
    assert summary.select("temperature", "compensated", "best_rate", "best_run").rows() == [
        ("1", False, 1.0, 1), ("0.1", False, 0.1, 2), ("0.1", True, 0.1, 3),
    ]  # fmt: skip


def test_curves_lengths_and_alerts() -> None:
    one = seed(4, GOOD, lengths={"8": [0.9, 0.1], "32": [0.5, 2.5]}, alerts={"sink": 5})
    parts = [part(0.1, one)]
    assert curve_table(parts).select("run", "seed", "step", "loss").rows() == [
        (0, 4, step, loss) for step, loss in zip(STEPS, GOOD, strict=True)
    ]
    assert length_table(parts).rows() == [(0, 4, 8, 0.9, 0.1), (0, 4, 32, 0.5, 2.5)]
    assert alert_table(parts).rows() == [(0, 4, "sink", 5)]


def test_intervals_are_those_of_student() -> None:
    values = [0.2, 0.5, 0.9]
    mean, low, high = mean_interval(values, 0.9)
    expected = stats.t.interval(0.9, 2, loc=mean, scale=stats.sem(values))
    assert (low, high) == pytest.approx(expected)
    assert mean_interval(values, 0.99, (0.0, 1.0))[1:] == (0.0, 1.0)
    assert mean_interval([0.4], 0.9) == (0.4, None, None)


def test_a_huge_rate_is_counted_as_diverged() -> None:
    """Planted: SGD that overshoots ends above where it began, or in what is no number."""
    run = choice(optimizer="sgd", rate=1e4, steps=30, seeds=(0, 1))
    healthy = choice(optimizer="sgd", rate=1e-3, steps=30, seeds=(0, 1))
    table = run_table([(one, train(small("recall"), one)) for one in (run, healthy)])
    assert table["diverged"].to_list() == [True, True, False, False]
    assert table["failed"].to_list() == [True] * 4  # the healthy rate is too slow for 30 steps
    assert table.filter(pl.col("run") == 0)["train_loss"].is_null().any() or (
        table["train_loss"][0] > table["start_loss"][0]
    )
    assert math.isfinite(table["train_loss"][2])
