"""Early warning on made-up curves whose answer is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from abbe.lab.early_warning import RESERVE, auc, shown_at, warning_table
from abbe.lab.reading import ALL_QUANTITIES
from abbe.lab.result import ALERT_SCHEMA, CURVE_SCHEMA, TABLE_SCHEMA

STEPS = list(range(1, 101))
START = 4.0


def lab(curves: list[dict[str, Any]], alerts: list[tuple[int, int, str, int]] = ()) -> dict[tuple[Any, ...], Any]:  # type: ignore[assignment]
    """Runs of one seed, as the tables of an experiment; gives the rows of the warnings by quantity, direction, kind."""
    table, frames = [], []
    for run, curve in enumerate(curves):
        losses = curve["loss"]
        half = next((step for step, loss in zip(STEPS, losses, strict=True) if loss <= START / 2), None)
        usual = dict.fromkeys(TABLE_SCHEMA)
        table.append(
            usual
            | {
                "run": run, "seed": 0, "failed": curve["failed"], "half_step": half, "start_loss": START,
                "normalizer": "softmax", "temperature": "1", "compensated": False, "qk_norm": False, "optimizer": "sgd",
                "rate": 1.0, "train_loss": losses[-1],
            }
        )  # fmt: skip
        values = {name: curve.get(name, [None] * len(STEPS)) for name in ALL_QUANTITIES}
        columns = {"run": run, "seed": 0, "step": STEPS, "loss": losses, **values}
        frames.append(pl.DataFrame(columns, schema_overrides=CURVE_SCHEMA))
    made = warning_table(
        pl.DataFrame(table, schema=TABLE_SCHEMA), pl.concat(frames),
        pl.DataFrame(list(alerts), schema=ALERT_SCHEMA, orient="row"), STEPS[-1],
    )  # fmt: skip
    return {(row["quantity"], row["direction"], row["kind"]): row for row in made.iter_rows(named=True)}


def healthy(half: int = 20, **values: Any) -> dict[str, Any]:
    return {"failed": False, "loss": [START if step < half else 1.0 for step in STEPS], **values}


def failing(**values: Any) -> dict[str, Any]:
    return {"failed": True, "loss": [START] * len(STEPS), **values}


def steps_from(step: int, low: float, high: float) -> list[float]:
    return [low if one < step else high for one in STEPS]


def test_a_loss_shows_failure_at_twice_the_slow_healthy_runs() -> None:
    table = pl.DataFrame({"failed": [False] * 10 + [True], "half_step": [*range(1, 11), None]})
    assert shown_at(table, 1000) == RESERVE * 10  # quantile 0.9 of ten: the tenth, never between two
    assert shown_at(table, 15) == 15
    assert shown_at(table.filter(pl.col("failed")), 70) == 70


def test_a_perfect_warning() -> None:
    """Every failing run crosses at step 11, its loss shows it at 40: 29 steps before, and nobody else crosses."""
    runs = [healthy(max_logit=steps_from(1, 0.0, 2.0)) for _ in range(3)]
    runs += [failing(max_logit=steps_from(11, 1.0, 10.0)) for _ in range(3)]
    row = lab(runs)["max_logit", "high", "level"]
    assert (row["failing"], row["healthy"], row["auc"]) == (3, 3, 1.0)
    assert (row["warned"], row["false_alarms"]) == (1.0, 0.0)
    assert row["threshold"] == 6.0  # halfway between 2 and 10
    assert (row["lead"], row["lead_share"]) == (29.0, 29 / 40)
    assert (row["auc_low"], row["auc_high"]) == (1.0, 1.0)


def test_what_comes_after_the_loss_shows_it_is_no_warning() -> None:
    runs = [healthy(max_logit=steps_from(1, 0.0, 2.0)), failing(max_logit=steps_from(60, 1.0, 10.0))]
    row = lab(runs)["max_logit", "high", "level"]
    assert (row["auc"], row["warned"], row["lead"]) == (0.0, 0.0, None)


def test_a_loss_that_rises_shows_it_at_once() -> None:
    runs = [healthy(max_logit=steps_from(1, 0.0, 2.0)), failing(max_logit=steps_from(5, 1.0, 10.0))]
    runs[1]["loss"] = steps_from(15, START, 1.06 * START)
    row = lab(runs)["max_logit", "high", "level"]
    assert row["lead"] == 10.0
    runs[1]["loss"] = steps_from(15, START, 1.04 * START)  # not by a twentieth
    assert lab(runs)["max_logit", "high", "level"]["lead"] == 35.0


def test_every_crossing_of_a_healthy_run_is_a_false_alarm() -> None:
    """Also a late one: the threshold has to stay above it."""
    runs = [healthy(max_logit=steps_from(90, 0.0, 20.0)) for _ in range(4)]
    runs += [failing(max_logit=steps_from(11, 1.0, 10.0)) for _ in range(4)]
    row = lab(runs)["max_logit", "high", "level"]
    assert (row["auc"], row["warned"], row["threshold"]) == (0.0, 0.0, None)


def test_low_and_change() -> None:
    """Separability that falls from 0.9 to 0.5 in failing runs, and is 0.4 always in the healthy ones."""
    runs = [healthy(separability=[0.4] * 100) for _ in range(3)]
    runs += [failing(separability=steps_from(10, 0.9, 0.5)) for _ in range(3)]
    rows = lab(runs)
    assert rows["separability", "low", "level"]["auc"] == 0.0
    change = rows["separability", "low", "change"]
    assert change["auc"] == 1.0
    assert change["threshold"] == pytest.approx(-0.2)
    assert change["lead"] == 30.0


def test_some_false_alarms_are_allowed() -> None:
    """One of 20 healthy runs may cross; with two of 20 the threshold has to be above both."""
    bad = [failing(max_logit=steps_from(2, 0.0, 5.0)) for _ in range(3)]
    for loud, warned in ((1, 1.0), (2, 0.0)):
        good = [healthy(max_logit=[6.0 if i < loud else 1.0] * 100) for i in range(20)]
        row = lab(good + bad)["max_logit", "high", "level"]
        assert row["warned"] == warned
        assert row["false_alarms"] == (0.05 if warned else 0.0)


def test_alerts_as_they_were_raised() -> None:
    runs = [healthy(), healthy(), failing(), failing()]
    rows = lab(runs, [(0, 0, "sink", 90), (2, 0, "sink", 10), (3, 0, "sink", 50)])
    row = rows["sink", None, "alert"]
    assert (row["warned"], row["false_alarms"], row["lead"]) == (0.5, 0.5, 30.0)
    assert rows["non_finite", None, "alert"]["warned"] == 0.0


def test_nothing_without_both_kinds_of_runs() -> None:
    assert not lab([healthy(), healthy()])
    assert not lab([failing(), failing()])


def test_auc_is_the_share_of_pairs_and_that_of_scipy() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        bad, good = random.integers(0, 6, size=7).astype(float), random.integers(0, 6, size=5).astype(float)
        bad[:2] = -math.inf  # runs in which nothing was measured
        pairs = [1.0 if b > g else 0.5 if b == g else 0.0 for b in bad for g in good]
        assert auc(bad, good) == pytest.approx(sum(pairs) / len(pairs))
        assert auc(bad, good) == pytest.approx(stats.mannwhitneyu(bad, good).statistic / 35)
    shift = 1.0  # two normal samples: Phi(shift / sqrt 2)
    bad, good = stats.norm.ppf((np.arange(400) + 0.5) / 400) + shift, stats.norm.ppf((np.arange(400) + 0.5) / 400)
    assert auc(bad, good) == pytest.approx(stats.norm.cdf(shift / math.sqrt(2)), abs=2e-3)
