"""Tables of an experiment, by hand, and early warning on made-up curves whose answer is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from lab_cases import BROKEN, GOOD, NOISY, READ, RISEN, SLOW, choice, part, seed, small
from scipy import stats

from abbe.lab import Experiment, tables
from abbe.lab.run import QUANTITIES, train
from abbe.results import Estimate


def table_of(*parts: Any) -> pl.DataFrame:
    return tables.run_tables(parts)["table"]


def test_half_step_failed_and_diverged() -> None:
    runs = [seed(0, GOOD), seed(1, SLOW), seed(2, RISEN), seed(3, BROKEN, loss=None), seed(4, NOISY)]
    table = table_of(part(0.1, *runs))
    assert table["half_step"].to_list() == [5, None, None, None, None]
    assert table["train_loss"].to_list() == [0.75, 3.25, 5.5, None, 4.1]  # steps after 8 of 10
    assert table["failed"].to_list() == [False, True, True, True, True]
    # One batch is a noisy first loss: a run that learns nothing has not diverged.
    assert table["diverged"].to_list() == [False, False, True, True, False]
    assert table["largest_logit"].to_list() == [7.0] * 5
    assert table["max_logit"].to_list() == [3.0] * 5  # of the last step
    assert table_of(part(0.1, seed(0, GOOD, loss=None)))["failed"].to_list() == [True]  # not finite when tested


def test_best_rate_and_sensitivity() -> None:
    """Losses are cut off at the first one: by seed 0.75, 4 and 3.25, and 0.75, 3.25 and 4 (of a broken run)."""
    table = table_of(
        part(0.1, seed(0, GOOD), seed(1, GOOD)),
        part(1.0, seed(0, RISEN), seed(1, SLOW)),
        part(10.0, seed(0, SLOW), seed(1, BROKEN, loss=None)),
    )
    assert tables.best_rows(table)["run"].to_list() == [0, 0]
    mean = (0.75 + 4 + 3.25) / 3 - 0.75
    assert tables.rate_sensitivities(table) == pytest.approx({0: mean, 1: mean})
    summary = tables.summary_table(table).row(0, named=True)
    assert summary["best_rate"] == 0.1
    assert (summary["runs"], summary["failed"], summary["diverged"]) == (6, 4, 2)
    assert summary["rate_sensitivity"] == pytest.approx(mean)
    broken = part(1.0, seed(0, [4.0, 3.0, 2.9, 2.9]), seed(1, BROKEN))
    table = table_of(part(0.1, seed(0, SLOW), seed(1, SLOW)), broken)
    assert set(tables.best_rows(table)["run"]) == {0}  # 3.25 against (2.9 + 4) / 2: one broken seed is too many


def test_each_choice_has_a_row_of_its_own() -> None:
    table = table_of(
        part(0.1, seed(0, SLOW)),
        part(1.0, seed(0, GOOD)),
        part(0.1, seed(0, GOOD), temperature="0.1"),
        part(0.1, seed(0, GOOD), temperature="0.1", compensated=True),
    )
    summary = tables.summary_table(table).select("temperature", "compensated", "best_rate", "best_run")
    assert summary.rows() == [("1", False, 1.0, 1), ("0.1", False, 0.1, 2), ("0.1", True, 0.1, 3)]


def test_curves_lengths_and_alerts() -> None:
    one = seed(4, GOOD, lengths={"8": [0.9, 0.1], "32": [0.5, 2.5]}, alerts={"sink": 5})
    made = tables.run_tables([part(0.1, one)])
    curves = made["curves"].select("run", "seed", "step", "loss").rows()
    assert curves == [(0, 4, step, loss) for step, loss in zip(READ, GOOD, strict=True)]
    assert made["lengths"].rows() == [(0, 4, 8, 0.9, 0.1), (0, 4, 32, 0.5, 2.5)]
    assert made["alerts"].rows() == [(0, 4, "sink", 5)]
    declared = Experiment.frame("curves").schema
    assert [name for name in declared if name in QUANTITIES] == list(QUANTITIES)


def test_intervals_are_those_of_student() -> None:
    values = [0.2, 0.5, 0.9]
    made = tables.mean_interval(values)
    expected = stats.t.interval(0.95, 2, loc=made.value, scale=stats.sem(values))
    assert (made.low, made.high) == pytest.approx(expected)
    clipped = tables.mean_interval(values, (0.0, 1.0))
    assert (clipped.low, clipped.high) == (0.0, 1.0)
    assert tables.mean_interval([0.4]) == Estimate(0.4)


def test_a_huge_rate_is_counted_as_diverged() -> None:
    """Planted: SGD that overshoots ends above where it began, or in what is no number."""
    runs = [choice(optimizer="sgd", rate=rate, steps=30, seeds=(0, 1)) for rate in (1e4, 1e-3)]
    table = table_of(*((run, train(small("recall"), run)) for run in runs))
    assert table["diverged"].to_list() == [True, True, False, False]
    assert table["failed"].to_list() == [True] * 4  # the healthy rate is too slow for 30 steps
    ended, start = table["train_loss"], table["start_loss"]
    assert ended[:2].is_null().any() or ended[0] > start[0]
    assert math.isfinite(ended[2])


# -- Early warning ----------------------------------------------------------------------------------------------------

STEPS = list(range(1, 101))
START = 4.0


def warned(curves: list[dict[str, Any]], alerts: Any = ()) -> dict[tuple[Any, ...], Any]:
    """Runs of one seed, as the tables of an experiment; gives the rows of the warnings by quantity, direction, kind."""
    same = {"normalizer": "softmax", "temperature": "1", "compensated": False, "qk_norm": False, "optimizer": "sgd"}
    rows, steps = [], []
    for run, curve in enumerate(curves):
        losses = curve["loss"]
        half = next((step for step, loss in zip(STEPS, losses, strict=True) if loss <= START / 2), None)
        row = {"run": run, "seed": 0, "failed": curve["failed"], "half_step": half, "start_loss": START}
        rows.append(same | row | {"rate": 1.0, "train_loss": losses[-1]})
        read = {name: values for name, values in curve.items() if name not in ("failed", "loss")}
        steps += [
            {"run": run, "seed": 0, "step": step, "loss": losses[i]} | {name: read[name][i] for name in read}
            for i, step in enumerate(STEPS)
        ]
    given = zip(("table", "curves", "alerts"), (rows, steps, alerts), strict=True)
    made = tables.warning_tables(*(Experiment.frame(name).of(listed) for name, listed in given), STEPS[-1])["warnings"]
    return {(row["quantity"], row["direction"], row["kind"]): row for row in made.iter_rows(named=True)}


def healthy(half: int = 20, **values: Any) -> dict[str, Any]:
    return {"failed": False, "loss": [START if step < half else 1.0 for step in STEPS], **values}


def failing(**values: Any) -> dict[str, Any]:
    return {"failed": True, "loss": [START] * len(STEPS), **values}


def steps_from(step: int, low: float, high: float) -> list[float]:
    return [low if one < step else high for one in STEPS]


def of_logits(good: list[float], bad: list[float], count: int = 3) -> Any:
    runs = [healthy(max_logit=good) for _ in range(count)] + [failing(max_logit=bad) for _ in range(count)]
    return warned(runs)["max_logit", "high", "level"]


def test_a_loss_shows_failure_at_twice_the_slow_healthy_runs() -> None:
    table = pl.DataFrame({"failed": [False] * 10 + [True], "half_step": [*range(1, 11), None]})
    assert tables.shown_at(table, 1000) == 2 * 10  # quantile 0.9 of ten: the tenth, never between two
    assert tables.shown_at(table, 15) == 15
    assert tables.shown_at(table.filter(pl.col("failed")), 70) == 70


def test_a_perfect_warning() -> None:
    """Every failing run crosses at step 11, its loss shows it at 40: 29 steps before, and nobody else crosses."""
    row = of_logits(steps_from(1, 0.0, 2.0), steps_from(11, 1.0, 10.0))
    assert (row["failing"], row["healthy"], row["auc"]) == (3, 3, 1.0)
    assert (row["warned"], row["false_alarms"]) == (1.0, 0.0)
    assert row["threshold"] == 6.0  # halfway between 2 and 10
    assert (row["lead"], row["lead_share"]) == (29.0, 29 / 40)
    assert (row["auc_low"], row["auc_high"]) == (1.0, 1.0)


@pytest.mark.parametrize(("rise", "lead"), [(1.06, 10.0), (1.04, 35.0)])  # by a twentieth, or less
def test_a_loss_that_rises_shows_it_at_once(rise: float, lead: float) -> None:
    bad = failing(max_logit=steps_from(5, 1.0, 10.0)) | {"loss": steps_from(15, START, rise * START)}
    runs = [healthy(max_logit=steps_from(1, 0.0, 2.0)), bad]
    assert warned(runs)["max_logit", "high", "level"]["lead"] == lead


@pytest.mark.parametrize(
    ("good", "bad", "threshold"),
    [
        (steps_from(90, 0.0, 20.0), steps_from(11, 1.0, 10.0), None),  # even a late crossing of a healthy run counts
        (steps_from(1, 0.0, 2.0), steps_from(40, 1.0, 10.0), None),  # not before the loss shows it
    ],
)
def test_what_is_no_warning(good: list[float], bad: list[float], threshold: float | None) -> None:
    row = of_logits(good, bad, 4)
    assert (row["auc"], row["warned"], row["lead"], row["threshold"]) == (0.0, 0.0, None, threshold)


def test_low_and_change() -> None:
    """Separability that falls from 0.9 to 0.5 in failing runs, and is 0.4 always in the healthy ones."""
    runs = [healthy(separability=[0.4] * 100) for _ in range(3)]
    runs += [failing(separability=steps_from(10, 0.9, 0.5)) for _ in range(3)]
    rows = warned(runs)
    assert rows["separability", "low", "level"]["auc"] == 0.0
    change = rows["separability", "low", "change"]
    assert change["auc"] == 1.0
    assert change["threshold"] == pytest.approx(-0.2)
    assert change["lead"] == 30.0


@pytest.mark.parametrize(("loud", "found"), [(1, 1.0), (2, 0.0)])
def test_some_false_alarms_are_allowed(loud: int, found: float) -> None:
    """One of 20 healthy runs may cross; with two of 20 the threshold has to be above both."""
    bad = [failing(max_logit=steps_from(2, 0.0, 5.0)) for _ in range(3)]
    good = [healthy(max_logit=[6.0 if i < loud else 1.0] * 100) for i in range(20)]
    row = warned(good + bad)["max_logit", "high", "level"]
    assert row["warned"] == found
    assert row["false_alarms"] == (0.05 if found else 0.0)


def test_alerts_as_they_were_raised() -> None:
    runs = [healthy(), healthy(), failing(), failing()]
    rows = warned(runs, [(0, 0, "sink", 90), (2, 0, "sink", 10), (3, 0, "sink", 50)])
    row = rows["sink", None, "alert"]
    assert (row["warned"], row["false_alarms"], row["lead"]) == (0.5, 0.5, 30.0)
    assert rows["non_finite", None, "alert"]["warned"] == 0.0
    assert not warned([healthy(), healthy()])  # nothing without both kinds of runs
    assert not warned([failing(), failing()])


def test_auc_is_the_share_of_pairs_and_that_of_scipy() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        bad, good = random.integers(0, 6, size=7).astype(float), random.integers(0, 6, size=5).astype(float)
        bad[:2] = -math.inf  # runs in which nothing was measured
        pairs = [1.0 if b > g else 0.5 if b == g else 0.0 for b in bad for g in good]
        assert tables.auc(bad, good) == pytest.approx(sum(pairs) / len(pairs))
        assert tables.auc(bad, good) == pytest.approx(stats.mannwhitneyu(bad, good).statistic / 35)
    shift = 1.0  # two normal samples: Phi(shift / sqrt 2)
    bad, good = stats.norm.ppf((np.arange(400) + 0.5) / 400) + shift, stats.norm.ppf((np.arange(400) + 0.5) / 400)
    assert tables.auc(bad, good) == pytest.approx(stats.norm.cdf(shift / math.sqrt(2)), abs=2e-3)
