"""What is said of a calibration, and how many held-out windows it takes to say it."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest
import torch
from inside import calibrate_result

from abbe import Calibration
from abbe.words.finding import Finding


def findings_for(*stages: list[float], level: float = 0.95) -> list[Finding]:
    """What is found with these losses: own, swapped, calibrated, and perhaps fine-tuned."""
    settings = SimpleNamespace(level=level, resamples=200, seed=0)
    names = ("baseline", "swapped", "calibrated", "fine-tuned")
    losses = calibrate_result.stage_losses(dict(zip(names, stages, strict=False)), settings)
    return list(
        calibrate_result.calibration_findings(
            losses, heads_with_zeros([0.5], [0.4]), fitted("t"), len(stages[0]), level
        )
    )


def sentences(*stages: list[float], level: float = 0.95) -> list[str]:
    """The sentences about these losses, each list taken twice: six windows are enough for 95 %."""
    return [finding.sentence for finding in findings_for(*(losses * 2 for losses in stages), level=level)]


def heads_with_zeros(before: list[float], after: list[float], tuned: list[float] | None = None) -> pl.DataFrame:
    count = len(before)
    numbers = {"energy": [1.0, 3.0][:count], "error_before": [0.4, 0.2][:count], "error_after": [0.2, 0.0][:count]}
    places = {"layer": [0] * count, "name": ["a"] * count, "head": list(range(count)), "spec": ["x"] * count}
    last = {"error_tuned": [0.6, 0.2][:count] if tuned else [None] * count, "zeros_tuned": tuned or [None] * count}
    columns = places | numbers | last | {"zeros_before": before, "zeros_after": after}
    return pl.DataFrame(columns, Calibration.frame().schema)


def fitted(*names: str, heads: int = 2) -> pl.DataFrame:
    """Parameters of some heads, which went from 1.5 to 1 and 1.02."""
    rows = [(0, head, name, 1.5, 1 + head / 50) for head in range(heads) for name in names]
    return Calibration.frame("parameters").of(rows)


OWN, WORSE = [2.0, 2.2, 2.1], [3.0, 3.2, 3.1]


def test_sentences_about_the_loss() -> None:
    assert sentences(OWN, WORSE, [2.1, 2.3, 2.2])[0] == (
        "The loss on 6 held-out windows is 2.100 nats for the unchanged model, 3.100 after the swap and 2.200 "
        "calibrated: calibration regains 0.900 nats, 90 % of what the swap cost."
    )
    assert sentences(OWN, WORSE, [1.0, 1.2, 1.1])[0].endswith("regains 2.000 nats, 100 % of what the swap cost.")
    assert sentences(OWN, [1.9, 2.3, 2.1], [1.0, 1.2, 1.1])[0].endswith("regains 1.000 nats.")  # the swap cost nothing
    assert sentences(OWN, WORSE, [4.0, 4.2, 4.1])[0].endswith("calibration makes it worse by 1.000 nats.")
    assert sentences(OWN, WORSE, [2.9, 3.3, 3.1])[0].endswith("no difference that these windows can show.")
    assert sentences(OWN, WORSE, WORSE, OWN)[1] == "Fine-tuning gains 1.000 nats on the held-out windows: 2.100 nats."
    assert "loses 1.000 nats" in sentences(OWN, WORSE, OWN, WORSE)[1]
    assert "no difference" in sentences(OWN, WORSE, OWN, [1.9, 2.3, 2.1])[1]


CLAIMS = ("regains", "makes it worse", "gains", "loses", "no difference")


@pytest.mark.parametrize(("windows", "level", "needed"), [(1, 0.95, 6), (2, 0.95, 6), (5, 0.95, 6), (4, 0.9, 5)])
@pytest.mark.parametrize("change", [-1.0, 1.0])
def test_few_windows_tell_numbers_but_no_change(windows: int, level: float, needed: int, change: float) -> None:
    own = [2.0 + 0.01 * i for i in range(windows)]
    swapped, fitted, tuned = ([loss + by for loss in own] for by in (3.0, 3.0 + change, 3.0 + 2 * change))
    loss, tuning = findings_for(own, swapped, fitted, tuned, level=level)[:2]
    mean = sum(own) / windows
    assert f"on {windows} held-out window{'' if windows == 1 else 's'} is {mean:.3f} nats" in loss.sentence
    assert f"and {mean + 3 + change:.3f} calibrated: too few" in loss.sentence
    assert f"the loss is {mean + 3 + 2 * change:.3f} nats: too few" in tuning.sentence
    for one in (loss, tuning):
        assert not any(claim in one.sentence for claim in CLAIMS)
        assert one.sentence.endswith(f"too few held-out windows to show a change, {needed} are needed.")
        assert f"comes from {needed} windows or more" in one.rule
        assert one.numbers["gain"] == pytest.approx(-change)
        assert (one.numbers["gain_low"] is None) == (windows == 1)


@pytest.mark.parametrize(("windows", "level"), [(6, 0.95), (5, 0.9)])
def test_as_many_as_are_needed_tell_a_change(windows: int, level: float) -> None:
    own = [2.0] * windows
    loss, tuning = findings_for(own, [3.0] * windows, [2.5] * windows, own, level=level)[:2]
    assert "regains 0.500 nats" in loss.sentence
    assert "gains 0.500 nats" in tuning.sentence


@pytest.mark.quick(2)
@pytest.mark.parametrize("windows", [2, 3, 4, 6])
def test_noise_seldom_counts_as_a_change(windows: int) -> None:
    generator = torch.Generator().manual_seed(windows)
    claimed = 0
    for _ in range(150):
        own, swapped, fitted = torch.randn(3, windows, generator=generator, dtype=torch.float64).add(9).tolist()
        sentence = findings_for(own, swapped, fitted)[0].sentence
        claimed += any(claim in sentence for claim in ("regains", "makes it worse"))
    assert claimed == 0 if windows < 6 else claimed < 20


def test_sentences_about_outputs_and_zeros() -> None:
    heads = heads_with_zeros([0.9, 0.9], [0.0, 0.5])
    outputs, zeros = calibrate_result.calibration_findings((), heads, fitted("t"), 3, 0.95)
    assert outputs.numbers["before"] == pytest.approx((0.4 + 3 * 0.2) / 4)
    assert outputs.sentence.endswith("off by 25 % of their size after the swap, 5 % calibrated.")
    assert "tuned" not in outputs.numbers
    assert zeros.sentence == "1 of 2 heads has lost its zeros."
    assert zeros.heads == ((0, 0),)
    assert (
        len(calibrate_result.calibration_findings((), heads_with_zeros([0.05, 0.9], [0.0, 0.5]), fitted("t"), 3, 0.95))
        == 1
    )


def test_heads_that_are_softmax_again_come_first_and_regain_nothing() -> None:
    """With learn=true a normalizer may end as the softmax that it is fitted to."""
    heads = heads_with_zeros([0.9, 0.7], [0.0, 0.2]).with_columns(error_after=pl.Series([1e-9, 1e-5]))
    settings = SimpleNamespace(level=0.95, resamples=200, seed=0)
    losses = calibrate_result.stage_losses({"baseline": OWN * 2, "swapped": WORSE * 2, "calibrated": OWN * 2}, settings)
    again, loss, *others = calibrate_result.calibration_findings(losses, heads, fitted("alpha", "t"), 6, 0.95)
    assert again.sentence == (
        "All 2 heads are softmax again: on average, alpha from 1.50 to 1.01, zeros from 80 % to 10 %; without "
        "learn=true in the spec, alpha would stay as given."
    )
    assert again.heads == ((0, 0), (0, 1))
    assert loss.sentence.endswith("calibration regains 1.000 nats, with heads that are softmax again.")
    assert [finding.topic for finding in others] == ["outputs"]
    only_one = calibrate_result.calibration_findings(losses, heads, fitted("a.alpha", heads=1), 6, 0.95)[0]
    assert only_one.sentence.startswith("1 of 2 heads is softmax again: on average, a.alpha from 1.50 to 1.00, zeros")
    for same in ("t", "a.t"):  # softmax at another temperature matches softmax, of course
        assert (
            "100 % of what the swap cost"
            in calibrate_result.calibration_findings(losses, heads, fitted(same), 6, 0.95)[0].sentence
        )
    already = heads.with_columns(error_before=pl.Series([2e-9, 2e-5]))  # nothing was there to be undone
    assert calibrate_result.calibration_findings(losses, already, fitted("alpha"), 6, 0.95)[0].topic == "loss"


def test_after_fine_tuning_its_errors_and_zeros_are_reported() -> None:
    heads = heads_with_zeros([0.9, 0.9], [0.0, 0.5], tuned=[0.3, 0.001])
    outputs, zeros = calibrate_result.calibration_findings((), heads, fitted("t"), 3, 0.95)
    assert outputs.sentence.endswith("after the swap, 5 % calibrated, 30 % fine-tuned.")
    assert outputs.numbers["tuned"] == pytest.approx((0.6 + 3 * 0.2) / 4)
    assert zeros.heads == ((0, 1),)
    assert zeros.rule.endswith("after the swap, below 1 % fine-tuned.")
