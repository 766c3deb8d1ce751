"""Rules of train_length, train_recall and train_text on made-up runs whose verdict is known."""

from __future__ import annotations

from typing import Any

import pytest
from lab_parts import BROKEN, GOOD, SLOW, part, seed, tables

from abbe.lab.judges import judge_accuracy, judge_length, judge_loss
from abbe.words.finding import Finding

PUBLISHED = {16: 0.986, 64: 0.943, 256: 0.813, 1024: 0.538, 4096: 0.226, 16384: 0.124}
GOES_ON: dict[int, float] = dict.fromkeys(PUBLISHED, 0.97)


def by_topic(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    assert len({finding.topic for finding in findings}) == len(findings)
    assert all(finding.sentence.endswith(".") and finding.rule for finding in findings)
    return {finding.topic: finding for finding in findings}


def long(normalizer: str, row: dict[int, float], spread: float = 0.01, rate: float = 0.1, **changed: Any) -> Any:
    """Three seeds around a row of accuracies."""
    rows = [{str(n): [x + (i - 1) * spread, 1.0] for n, x in row.items()} for i in range(3)]
    seeds = [seed(i, GOOD, accuracy=row[16], lengths=lengths, **changed) for i, lengths in enumerate(rows)]
    return part(rate, *seeds, normalizer=normalizer)


def test_softmax_that_decays_as_published() -> None:
    finding = by_topic(judge_length(tables(long("softmax", PUBLISHED)), 0.95))["softmax by length"]
    assert finding.numbers["verdict"] == "decays by more than half"
    assert finding.numbers["apart"] == pytest.approx(0.0, abs=1e-12)
    assert finding.numbers["accuracy_256"] == pytest.approx(0.813)
    assert finding.numbers["published_256"] == 0.813
    assert "16,384 items 12.4 %" in finding.sentence


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
    finding = by_topic(judge_length(tables(long("softmax", row)), 0.95))["softmax by length"]
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
    findings = by_topic(judge_length(tables(*softmax, *ssmax), 0.95))
    assert findings["normalizers against softmax on longer sets"].numbers["ssmax"] == pytest.approx(0.11)
    equal = findings["normalizers against softmax at equal rates"]
    for rate, own in (("0.1", 0.5288), ("1", 0.6288)):
        assert equal.numbers[f"softmax@{rate}"] == pytest.approx(own)
        assert equal.numbers[f"ssmax@{rate}"] == pytest.approx(0.01)
    assert "at 0.1 ssmax +1; at 1 ssmax +1." in equal.sentence


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
    verdicts = by_topic(
        judge_length(tables(long("softmax", PUBLISHED, 0.1), long("ssmax", better, 0.1), mixed, worse), 0.95)
    )
    finding = verdicts["normalizers against softmax on the longest sets"]
    assert finding.numbers["higher"] == "ssmax"
    assert finding.numbers["lower"] == "topk:k=4"
    assert finding.numbers["ssmax"] == pytest.approx(0.05)
    assert finding.numbers["ssmax_low"] == pytest.approx(0.05)
    assert finding.numbers["lengths"] == "16384"


def test_the_mean_over_longer_sets_is_compared_too() -> None:
    """What differs at middle lengths alone is not seen on the longest sets, where all are at chance."""
    middle = PUBLISHED | {1024: 0.638}
    verdicts = by_topic(judge_length(tables(long("softmax", PUBLISHED), long("ssmax", middle)), 0.95))
    assert verdicts["normalizers against softmax on the longest sets"].numbers["higher"] == ""
    finding = verdicts["normalizers against softmax on longer sets"]
    assert finding.numbers["higher"] == "ssmax"
    assert finding.numbers["ssmax"] == pytest.approx(0.1 / 5)
    assert finding.numbers["lengths"] == "64, 256, 1024, 4096, 16384"


def test_fit_and_generalisation_are_both_reported() -> None:
    made = [long("softmax", PUBLISHED), long("ssmax", GOES_ON), long("sparsemax", dict.fromkeys(PUBLISHED, 0.3))]
    finding = by_topic(judge_length(tables(*made), 0.95))["fit and generalisation"]
    assert finding.numbers["only_fitted"] == "softmax"
    assert finding.numbers["not_fitted"] == "sparsemax"
    assert finding.numbers["ssmax_16384"] == pytest.approx(0.97)


def test_the_best_rate_is_chosen_by_training_loss_alone() -> None:
    """A rate with a better test but a worse training loss is not taken."""
    slow = part(1.0, *(seed(i, SLOW, lengths={"16": [1.0, 0.1], "16384": [1.0, 0.1]}) for i in range(3)))
    findings = by_topic(judge_length(tables(long("softmax", PUBLISHED), slow), 0.95))
    assert findings["softmax by length"].numbers["accuracy_16384"] == pytest.approx(0.124)


def test_learned_values_are_named() -> None:
    finding = by_topic(judge_length(tables(long("ssmax:learn=true", GOES_ON, learned=["ssmax:s=2"])), 0.95))
    assert finding["learned values"].numbers["ssmax:learn=true"] == "ssmax:s=2 | ssmax:s=2 | ssmax:s=2"


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
        finding = by_topic(judge(tables(*made), 0.95))["normalizers against softmax"]
        assert unit in finding.sentence
        expected = "ssmax better, topk:k=4 worse" if judge is judge_loss else "ssmax better, topk:k=4, relu worse"
        assert finding.numbers["verdict"] == expected
    assert "relu has no finite one" in finding.sentence
    assert finding.numbers["ssmax"] == pytest.approx(-0.19666667)


def test_steps_to_half_the_loss() -> None:
    made = [part(0.1, seed(0, GOOD), seed(1, GOOD)), part(0.1, seed(0, GOOD), seed(1, SLOW), normalizer="ssmax")]
    finding = by_topic(judge_accuracy(tables(*made), 0.95))["steps to half the loss"]
    assert finding.numbers == {"softmax": 5, "ssmax": None}


def test_sensitivity_to_the_rate() -> None:
    """softmax learns at one rate of three, ssmax at all; its best rate is the middle one, that of ssmax at an edge."""
    losses = {"softmax": (SLOW, GOOD, SLOW), "ssmax": (GOOD, GOOD, GOOD)}
    made = [
        part(rate, *(seed(i, curve) for i in range(3)), normalizer=name)
        for name, curves in losses.items()
        for rate, curve in zip((0.01, 0.1, 1.0), curves, strict=True)
    ]
    finding = by_topic(judge_accuracy(tables(*made), 0.95))["sensitivity to the rate"]
    assert finding.numbers["softmax"] == pytest.approx(2 / 3 * (3.25 - 0.75))
    assert finding.numbers["ssmax"] == pytest.approx(-2 / 3 * (3.25 - 0.75))
    assert "ssmax (lower)" in finding.sentence
    assert finding.numbers["at_edge"] == "ssmax"


def test_one_rate_has_no_sensitivity_and_one_seed_no_verdict() -> None:
    findings = by_topic(
        judge_accuracy(tables(part(0.1, seed(0, GOOD)), part(0.1, seed(0, GOOD), normalizer="ssmax")), 0.95)
    )
    assert set(findings) == {"normalizers against softmax", "steps to half the loss"}
    assert findings["normalizers against softmax"].numbers["verdict"] == "none better, none worse"


def test_without_softmax_the_first_is_the_baseline_and_optimizers_are_judged_apart() -> None:
    made = [
        part(0.1, seed(0, GOOD), seed(1, GOOD), normalizer=name, optimizer=optimizer)
        for optimizer in ("sgd", "muon")
        for name in ("ssmax", "relu")
    ]
    assert {"normalizers against ssmax, sgd", "normalizers against ssmax, muon"} <= set(
        by_topic(judge_loss(tables(*made), 0.95))
    )
