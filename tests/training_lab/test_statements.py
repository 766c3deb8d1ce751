"""The five statements about training, judged on made-up runs whose verdict is known."""

import itertools
from dataclasses import replace

import polars as pl
import pytest

from abbe.lab.result import (
    ALERT_SCHEMA,
    CURVE_SCHEMA,
    LENGTH_SCHEMA,
    ROC_SCHEMA,
    TABLE_SCHEMA,
    WARNING_SCHEMA,
    Tables,
    summary_table,
)
from abbe.lab.statements import judge_temperature

SEEDS = range(5)


def run_rows(number, accuracy, *, spread=0.01, half_step=30, **choice):
    """One run of five seeds whose accuracies lie around a mean."""
    usual = {"normalizer": "softmax", "temperature": "1", "compensated": False, "qk_norm": False, "optimizer": "sgd"}
    row = dict.fromkeys(TABLE_SCHEMA) | usual | {"rate": 1.0} | choice
    return [
        row
        | {"run": number, "seed": seed, "accuracy": accuracy + spread * (seed - 2), "half_step": half_step}
        | {"train_loss": 1 - accuracy, "start_loss": 5.0, "failed": accuracy < 0.5, "diverged": False}
        for seed in SEEDS
    ]


def tables(runs, curves=(), warnings=()):
    """From (accuracy, choice) of each run."""
    rows = [row for number, (accuracy, choice) in enumerate(runs) for row in run_rows(number, accuracy, **choice)]
    table = pl.DataFrame(rows, schema=TABLE_SCHEMA)
    empty = {"lengths": LENGTH_SCHEMA, "alerts": ALERT_SCHEMA, "roc": ROC_SCHEMA}
    return Tables(
        table=table,
        curves=pl.DataFrame(list(curves), schema=CURVE_SCHEMA),
        summary=summary_table(table, 0.95),
        warnings=pl.DataFrame(list(warnings), schema=WARNING_SCHEMA),
        **{name: pl.DataFrame(schema=schema) for name, schema in empty.items()},
    )


def verdicts(made):
    return {finding.topic: finding.numbers.get("verdict") for finding in judge_temperature(made, 0.95)}


def grid(same_rate, own_rate, control):
    """T = 1 is best at rate 1; T = 0.01 reaches `same_rate` there and `own_rate` at another, its control `control`."""
    low = {"temperature": "0.01"}
    return [
        (0.99, {}),
        (0.60, {"rate": 0.1}),
        (same_rate, low),
        (own_rate, low | {"rate": 0.1}),
        (control, low | {"compensated": True}),
        (0.60, low | {"compensated": True, "rate": 0.1}),
    ]


@pytest.mark.parametrize(
    ("same_rate", "own_rate", "control", "verdict"),
    [
        (0.30, 0.50, 0.99, "holds, by scale alone"),
        (0.30, 0.50, 0.40, "holds"),
        (0.30, 0.985, 0.99, "holds only at an unchanged rate"),
        (0.98, 0.97, 0.99, "does not hold"),
    ],
)
def test_low_temperature(same_rate, own_rate, control, verdict):
    assert verdicts(tables(grid(same_rate, own_rate, control)))["(i) low temperature, sgd"] == verdict


def test_low_temperature_may_only_be_slower():
    slow = [(accuracy, choice | {"half_step": 90 if choice.get("temperature") == "0.01" else 30})
            for accuracy, choice in grid(0.99, 0.6, 0.99)]  # fmt: skip
    slow[4] = (0.99, slow[4][1] | {"half_step": 30})
    finding = judge_temperature(tables(slow), 0.95)[0]
    assert finding.numbers["verdict"] == "holds, by scale alone"
    assert "3.0 times the steps" in finding.sentence


def test_seeds_that_differ_too_much_do_not_tell():
    runs = grid(0.30, 0.50, 0.99)
    runs[2], runs[3] = (0.30, runs[2][1] | {"spread": 0.5}), (0.50, runs[3][1] | {"spread": 0.5})
    assert verdicts(tables(runs))["(i) low temperature, sgd"] == "inconclusive with these seeds"


@pytest.mark.parametrize(("of_sparsemax", "holds"), [(0.9, True), (0.5, False), (0.2, False)])
def test_other_normalizers(of_sparsemax, holds):
    sparse = {"normalizer": "sparsemax"}
    runs = [(0.99, {}), (0.5, {"temperature": "0.01"}), (0.5, {"temperature": "0.01", "compensated": True})]
    runs += [(0.99, sparse), (of_sparsemax, sparse | {"temperature": "0.01"})]
    finding = next(f for f in judge_temperature(tables(runs), 0.95) if f.topic.startswith("(ii)"))
    assert finding.numbers["verdict"] == ("holds for sparsemax" if holds else "does not hold")
    assert finding.numbers["sparsemax"] == pytest.approx(of_sparsemax - 0.5)


def test_seeds_that_never_get_there_count_as_slow():
    made = tables(grid(0.30, 0.93, 0.99))
    never = (pl.col("run") == 3) & pl.col("seed").is_in([0, 1, 2])
    rows = made.table.with_columns(pl.when(never).then(None).otherwise("half_step").alias("half_step"))
    finding = judge_temperature(replace(made, table=rows), 0.95)[0]
    assert finding.numbers["verdict"] == "holds, by scale alone"
    assert "the loss never halves" in finding.sentence


def test_nothing_is_judged_without_a_baseline_that_learned():
    runs = [(0.3, {}), (0.1, {"temperature": "0.01"}), (0.3, {"temperature": "0.01", "compensated": True})]
    assert verdicts(tables(runs))["(i) low temperature, sgd"].startswith("cannot be judged")


def test_queries_and_keys_of_unit_length_are_judged_apart():
    normed = {"qk_norm": True}
    runs = [*grid(0.3, 0.5, 0.99), (0.99, normed), (0.97, normed | {"temperature": "0.01"})]
    finding = next(f for f in judge_temperature(tables(runs), 0.95) if f.topic == "(i) with QK-norm")
    assert finding.numbers["sgd"] == pytest.approx(-0.02)
    assert finding.numbers["sgd_hard"] == "false"


def warning(quantity, direction, *, auc, auc_low, warned):
    row = dict.fromkeys(WARNING_SCHEMA) | {"quantity": quantity, "direction": direction, "kind": "change", "auc": auc}
    return row | {"auc_low": auc_low, "auc_high": 0.99, "warned": warned, "failing": 10, "false_alarms": 0.05}


@pytest.mark.parametrize(
    ("auc_low", "warned", "verdict"),
    [(0.7, 0.6, "holds"), (0.7, 0.2, "holds weakly"), (0.4, 0.9, "does not hold"), (None, 0.9, "does not hold")],
)
def test_early_warnings(auc_low, warned, verdict):
    rows = [warning("entropy_share", "high", auc=0.8, auc_low=auc_low, warned=warned),
            warning("separability", "low", auc=0.8, auc_low=0.2, warned=0.0)]  # fmt: skip
    judged = verdicts(tables(grid(0.3, 0.5, 0.99), warnings=rows))
    assert judged["(iii) rising entropy"] == verdict
    assert judged["(iv) falling N_s/N"] == "does not hold"


@pytest.mark.parametrize(("inside", "outside", "verdict"), [(1.0, 0.0, "holds"), (0.0, 1.0, "does not hold"),
                                                             (1.0, 1.0, "does not hold")])  # fmt: skip
def test_band_of_separability(inside, outside, verdict):
    steps = itertools.product(range(4), range(1, 11))
    curves = [
        dict.fromkeys(CURVE_SCHEMA)
        | {"run": run, "seed": 0, "step": step, "separability": 0.75 if step < 5 else 0.4}
        | {"saturated": inside if step < 5 else outside}
        for run, step in steps
    ]
    judged = verdicts(tables(grid(0.3, 0.5, 0.99), curves=curves))
    assert judged["(v) 70 to 80 %"] == verdict


def test_a_band_with_saturation_above_it_is_none():
    """Every step above 70 % is saturated: the band is not what marks it."""
    curves = [
        dict.fromkeys(CURVE_SCHEMA) | {"run": run, "seed": 0, "step": step, "separability": step / 10}
        | {"saturated": float(step >= 7)}
        for run, step in itertools.product(range(4), range(1, 11))
    ]  # fmt: skip
    judged = verdicts(tables(grid(0.3, 0.5, 0.99), curves=curves))
    assert judged["(v) 70 to 80 %"] == "holds from 70 % on, not for a band"


def test_nothing_is_said_of_what_was_not_trained():
    assert judge_temperature(tables([(0.9, {"normalizer": "sparsemax"})]), 0.95) == ()
    assert judge_temperature(tables([(0.9, {}), (0.8, {"temperature": "0.5"})]), 0.95) == ()
