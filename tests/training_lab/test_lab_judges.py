"""Rules of all experiments on made-up runs whose verdict is known."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from lab_cases import BROKEN, GOOD, SLOW, from_parts, from_rows, part, seed

from abbe.lab import Experiment
from abbe.lab.judges import judge_accuracy, judge_length, judge_loss, judge_temperature
from abbe.words.finding import Finding

PUBLISHED = {16: 0.986, 64: 0.943, 256: 0.813, 1024: 0.538, 4096: 0.226, 16384: 0.124}
GOES_ON: dict[int, float] = dict.fromkeys(PUBLISHED, 0.97)


def by_topic(judge: Any, *parts: Any) -> dict[str, Finding]:
    findings = list(judge(from_parts(*parts)))
    assert len({finding.topic for finding in findings}) == len(findings)
    assert all(finding.sentence.endswith(".") and finding.rule for finding in findings)
    return {finding.topic: finding for finding in findings}


def long(normalizer: str, row: dict[int, float], spread: float = 0.01, rate: float = 0.1, **changed: Any) -> Any:
    """Three seeds around a row of accuracies."""
    rows = [{str(n): [x + (i - 1) * spread, 1.0] for n, x in row.items()} for i in range(3)]
    seeds = [seed(i, GOOD, accuracy=row[16], lengths=lengths, **changed) for i, lengths in enumerate(rows)]
    return part(rate, *seeds, normalizer=normalizer)


def test_softmax_that_decays_as_published() -> None:
    finding = by_topic(judge_length, long("softmax", PUBLISHED))["softmax by length"]
    assert finding.numbers["verdict"] == "decays by more than half"
    assert finding.numbers["apart"] == pytest.approx(0.0, abs=1e-12)
    assert finding.numbers["accuracy_256"] == pytest.approx(0.813)
    assert finding.numbers["published_256"] == 0.813


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (GOES_ON, "does not decay"),
        (
            PUBLISHED | {1024: 0.65, 4096: 0.6, 16384: 0.58},
            "decays, by less than half or not at every length",
        ),  # by less than half
        (PUBLISHED | {64: 0.99, 16: 0.9}, "decays, by less than half or not at every length"),  # rises first
    ],
)
def test_softmax_that_does_not(row: dict[int, float], verdict: str) -> None:
    finding = by_topic(judge_length, long("softmax", row))["softmax by length"]
    assert finding.numbers["verdict"] == verdict


def test_at_equal_rates_what_a_rate_gains_is_not_credited_to_a_normalizer() -> None:
    """Planted: the higher rate gives 10 points on longer sets, ssmax 1 more; training losses choose 0.1 and 1."""
    higher = {n: x + 0.1 * (n > 16) for n, x in PUBLISHED.items()}
    softmax = [long("softmax", PUBLISHED, rate=0.1), long("softmax", higher, rate=1.0)]
    rows = {rate: {n: x + 0.01 for n, x in row.items()} for rate, row in ((0.1, PUBLISHED), (1.0, higher))}
    ssmax = [long("ssmax", row, rate=rate) for rate, row in rows.items()]
    for _, content in (softmax[1], ssmax[0]):
        for one in content["seeds"]:
            one["losses"] = [*one["losses"][:-1], 0.6]  # a little above the other rate's
    findings = by_topic(judge_length, *softmax, *ssmax)
    assert findings["normalizers against softmax on longer sets"].numbers["ssmax"] == pytest.approx(0.11)
    equal = findings["normalizers against softmax at equal rates"]
    for rate, own in (("0.1", 0.5288), ("1", 0.6288)):
        assert equal.numbers[f"softmax@{rate}"] == pytest.approx(own)
        assert equal.numbers[f"ssmax@{rate}"] == pytest.approx(0.01)


def test_longer_sets_are_compared_by_seed() -> None:
    """A difference that every seed has counts, however far the seeds lie apart; a mean of both signs does not."""
    better = {n: x + 0.05 for n, x in PUBLISHED.items()}
    mixed = part(
        0.1, *(
            seed(i, GOOD, lengths={str(n): [y, 1.0] for n, y in (PUBLISHED | {16384: 0.124 + x}).items()})
            for i, x in enumerate((0.3, -0.1, 0.1))
        ),
        normalizer="sparsemax",
    )  # fmt: skip
    worse = long("topk:k=4", PUBLISHED | {16384: 0.1}, spread=0.1)
    verdicts = by_topic(judge_length, long("softmax", PUBLISHED, 0.1), long("ssmax", better, 0.1), mixed, worse)
    finding = verdicts["normalizers against softmax on the longest sets"]
    assert finding.numbers["higher"] == "ssmax"
    assert finding.numbers["lower"] == "topk:k=4"
    assert finding.numbers["ssmax"] == pytest.approx(0.05)
    assert finding.numbers["ssmax_low"] == pytest.approx(0.05)
    assert finding.numbers["lengths"] == "16384"


def test_the_mean_over_longer_sets_is_compared_too() -> None:
    """What differs at middle lengths alone is not seen on the longest sets, where all are at chance."""
    middle = PUBLISHED | {1024: 0.638}
    verdicts = by_topic(judge_length, long("softmax", PUBLISHED), long("ssmax", middle))
    assert verdicts["normalizers against softmax on the longest sets"].numbers["higher"] == ""
    finding = verdicts["normalizers against softmax on longer sets"]
    assert finding.numbers["higher"] == "ssmax"
    assert finding.numbers["ssmax"] == pytest.approx(0.1 / 5)
    assert finding.numbers["lengths"] == "64, 256, 1024, 4096, 16384"


def test_fit_and_generalisation_are_both_reported() -> None:
    made = [long("softmax", PUBLISHED), long("ssmax", GOES_ON), long("sparsemax", dict.fromkeys(PUBLISHED, 0.3))]
    finding = by_topic(judge_length, *made)["fit and generalisation"]
    assert finding.numbers["only_fitted"] == "softmax"
    assert finding.numbers["not_fitted"] == "sparsemax"
    assert finding.numbers["ssmax_16384"] == pytest.approx(0.97)


def test_the_best_rate_is_chosen_by_training_loss_alone_and_learned_values_are_named() -> None:
    """A rate with a better test but a worse training loss is not taken."""
    slow = part(1.0, *(seed(i, SLOW, lengths={str(n): [1.0, 0.1] for n in PUBLISHED}) for i in range(3)))
    learns = long("ssmax:learn=true", GOES_ON, learned=["ssmax:s=2"])
    findings = by_topic(judge_length, long("softmax", PUBLISHED), slow, learns)
    assert findings["softmax by length"].numbers["accuracy_16384"] == pytest.approx(0.124)
    assert findings["learned values"].numbers == {"ssmax:learn=true": "ssmax:s=2 | ssmax:s=2 | ssmax:s=2"}


def scored(normalizer: str, accuracies: list[float], losses: list[float | None], rate: float = 0.1) -> Any:
    seeds = [
        seed(i, GOOD if loss is not None else BROKEN, accuracy=a, loss=loss)
        for i, (a, loss) in enumerate(zip(accuracies, losses, strict=True))
    ]
    return part(rate, *seeds, normalizer=normalizer)


def test_normalizers_against_softmax() -> None:
    made = [
        scored("softmax", [0.5, 0.6, 0.7], [1.0, 1.1, 1.2]),
        scored("ssmax", [0.6, 0.7, 0.81], [0.8, 0.9, 1.01]),
        scored("sparsemax", [0.9, 0.2, 0.7], [2.0, 0.1, 1.0]),
        scored("topk:k=4", [0.3, 0.4, 0.51], [1.5, 1.6, 1.71]),
        scored("relu", [0.1, 0.1, 0.1], [None, None, None]),
    ]
    for judge, unit in ((judge_accuracy, "points"), (judge_loss, "nats")):
        finding = by_topic(judge, *made)["normalizers against softmax"]
        assert unit in finding.sentence
        expected = "ssmax better, topk:k=4 worse" if judge is judge_loss else "ssmax better, topk:k=4, relu worse"
        assert finding.numbers["verdict"] == expected
    assert finding.numbers["ssmax"] == pytest.approx(-0.19666667)


def test_steps_to_half_the_loss() -> None:
    made = [part(0.1, seed(0, GOOD), seed(1, GOOD)), part(0.1, seed(0, GOOD), seed(1, SLOW), normalizer="ssmax")]
    finding = by_topic(judge_accuracy, *made)["steps to half the loss"]
    assert finding.numbers == {"softmax": 5, "ssmax": None}


def test_sensitivity_to_the_rate() -> None:
    """softmax learns at one rate of three, ssmax at all; its best rate is the middle one, that of ssmax at an edge."""
    losses = {"softmax": (SLOW, GOOD, SLOW), "ssmax": (GOOD, GOOD, GOOD)}
    made = [
        part(rate, *(seed(i, curve) for i in range(3)), normalizer=name)
        for name, curves in losses.items()
        for rate, curve in zip((0.01, 0.1, 1.0), curves, strict=True)
    ]
    finding = by_topic(judge_accuracy, *made)["sensitivity to the rate"]
    assert finding.numbers["softmax"] == pytest.approx(2 / 3 * (3.25 - 0.75))
    assert finding.numbers["ssmax"] == pytest.approx(-2 / 3 * (3.25 - 0.75))
    assert finding.numbers["at_edge"] == "ssmax"


def test_one_rate_has_no_sensitivity_and_one_seed_no_verdict() -> None:
    findings = by_topic(judge_accuracy, part(0.1, seed(0, GOOD)), part(0.1, seed(0, GOOD), normalizer="ssmax"))
    assert set(findings) == {"normalizers against softmax", "steps to half the loss"}
    assert findings["normalizers against softmax"].numbers["verdict"] == "none better, none worse"


def test_without_softmax_the_first_is_the_baseline_and_optimizers_are_judged_apart() -> None:
    made = [
        part(0.1, seed(0, GOOD), seed(1, GOOD), normalizer=name, optimizer=optimizer)
        for optimizer in ("sgd", "muon")
        for name in ("ssmax", "relu")
    ]
    assert {"normalizers against ssmax, sgd", "normalizers against ssmax, muon"} <= set(by_topic(judge_loss, *made))


# -- The paper's statements -------------------------------------------------------------------------------------------


def run_rows(number: int, reached: float, *, spread: float = 0.01, half_step: int = 30, **chosen: Any) -> list[Any]:
    """One run of five seeds whose accuracies lie around a mean."""
    usual = {"normalizer": "softmax", "temperature": "1", "compensated": False, "qk_norm": False, "optimizer": "sgd"}
    row = usual | {"rate": 1.0, "run": number, "half_step": half_step, "train_loss": 1 - reached, "start_loss": 5.0}
    row |= {"failed": reached < 0.5, "diverged": False} | chosen
    return [row | {"seed": i, "accuracy": reached + spread * (i - 2)} for i in range(5)]


def trained(runs: Any, **more: Any) -> Experiment:
    """From (accuracy, choice) of each run."""
    rows = [row for number, (reached, chosen) in enumerate(runs) for row in run_rows(number, reached, **chosen)]
    return from_rows(table=rows, **more)


def judged(made: Experiment) -> dict[str, Finding]:
    return {finding.topic: finding for finding in judge_temperature(made)}


def verdict(made: Experiment, topic: str) -> Any:
    return judged(made)[topic].numbers["verdict"]


LOW = "(i) low temperature, sgd"


def grid(same_rate: float, own_rate: float, control: float) -> list[Any]:
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
    ("same_rate", "own_rate", "control", "expected"),
    [
        (0.30, 0.50, 0.99, "holds, by scale alone"),
        (0.30, 0.50, 0.40, "holds"),
        (0.30, 0.985, 0.99, "holds only at an unchanged rate"),
        (0.98, 0.97, 0.99, "does not hold"),
    ],
)
def test_low_temperature(same_rate: float, own_rate: float, control: float, expected: str) -> None:
    assert verdict(trained(grid(same_rate, own_rate, control)), LOW) == expected


def test_low_temperature_may_only_be_slower() -> None:
    low = "0.01"
    slow = [(x, chosen | {"half_step": 90 if chosen.get("temperature") == low else 30})
            for x, chosen in grid(0.99, 0.6, 0.99)]  # fmt: skip
    slow[4] = (0.99, slow[4][1] | {"half_step": 30})
    finding = judged(trained(slow))[LOW]
    assert finding.numbers["verdict"] == "holds, by scale alone"


def test_seeds_that_differ_too_much_do_not_tell() -> None:
    runs = grid(0.30, 0.50, 0.99)
    runs[2], runs[3] = (0.30, runs[2][1] | {"spread": 0.5}), (0.50, runs[3][1] | {"spread": 0.5})
    assert verdict(trained(runs), LOW) == "inconclusive with these seeds"


@pytest.mark.parametrize(("of_sparsemax", "holds"), [(0.9, True), (0.5, False), (0.2, False)])
def test_other_normalizers(of_sparsemax: float, holds: bool) -> None:
    sparse = {"normalizer": "sparsemax"}
    runs: list[Any] = [(0.99, {}), (0.5, {"temperature": "0.01"}), (0.5, {"temperature": "0.01", "compensated": True})]
    runs += [(0.99, sparse), (of_sparsemax, sparse | {"temperature": "0.01"})]
    numbers = judged(trained(runs))["(ii) other normalizers"].numbers
    assert numbers["verdict"] == ("holds for sparsemax" if holds else "does not hold")
    assert numbers["sparsemax"] == pytest.approx(of_sparsemax - 0.5)


def test_seeds_that_never_get_there_count_as_slow() -> None:
    made = trained(grid(0.30, 0.93, 0.99))
    never = (pl.col("run") == 3) & pl.col("seed").is_in([0, 1, 2])
    rows = made.table.with_columns(pl.when(never).then(None).otherwise("half_step").alias("half_step"))
    finding = judged(replace(made, table=rows))[LOW]
    assert finding.numbers["verdict"] == "holds, by scale alone"


def test_nothing_is_judged_without_a_baseline_that_learned() -> None:
    runs = [(0.3, {}), (0.1, {"temperature": "0.01"}), (0.3, {"temperature": "0.01", "compensated": True})]
    assert verdict(trained(runs), LOW).startswith("cannot be judged")


def test_queries_and_keys_of_unit_length_are_judged_apart() -> None:
    normed = {"qk_norm": True}
    runs = [*grid(0.3, 0.5, 0.99), (0.99, normed), (0.97, normed | {"temperature": "0.01"})]
    numbers = judged(trained(runs))["(i) with QK-norm"].numbers
    assert numbers["sgd"] == pytest.approx(-0.02)
    assert numbers["sgd_hard"] == "false"


@pytest.mark.parametrize(
    ("auc_low", "share", "expected"),
    [(0.7, 0.6, "holds"), (0.7, 0.2, "holds weakly"), (0.4, 0.9, "does not hold"), (None, 0.9, "does not hold")],
)
def test_early_warnings(auc_low: float | None, share: float, expected: str) -> None:
    both = {"kind": "change", "auc": 0.8, "auc_high": 0.99, "failing": 10, "false_alarms": 0.05}
    rows = [
        both | {"quantity": "entropy_share", "direction": "high", "auc_low": auc_low, "warned": share},
        both | {"quantity": "separability", "direction": "low", "auc_low": 0.2, "warned": 0.0},
    ]
    made = trained(grid(0.3, 0.5, 0.99), warnings=rows)
    assert verdict(made, "(iii) rising entropy") == expected
    assert verdict(made, "(iv) falling N_s/N") == "does not hold"


@pytest.mark.parametrize(
    ("saturated", "expected"),
    [
        (lambda step: 0.0, "does not hold"),
        (lambda step: 1.0, "does not hold"),
        (lambda step: float(step in (7, 8)), "holds"),
        (lambda step: float(step not in (7, 8)), "does not hold"),
        (lambda step: float(step >= 7), "holds from 70 % on, not for a band"),
    ],
)
def test_band_of_separability(saturated: Any, expected: str) -> None:
    """N_s/N is a tenth of the step."""
    curves = [
        {"run": run, "seed": 0, "step": step, "separability": step / 10, "saturated": saturated(step)}
        for run, step in itertools.product(range(4), range(1, 11))
    ]
    assert verdict(trained(grid(0.3, 0.5, 0.99), curves=curves), "(v) 70 to 80 %") == expected


def test_nothing_is_said_of_what_was_not_trained() -> None:
    assert judged(trained([(0.9, {"normalizer": "sparsemax"})])) == {}
    assert judged(trained([(0.9, {}), (0.8, {"temperature": "0.5"})])) == {}
