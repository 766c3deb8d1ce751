"""What a calibration means, in sentences."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import polars as pl

from ._calibrate_parts import FITTED, OWN, SWAPPED, TUNED_STAGE, StageLoss, pooled
from ._report_parts import Fact, Finding
from ._telling import count_of, percent, sentence

_WAS_SPARSE, _IS_DENSE = 0.1, 0.01  # shares of zeros


def calibration_findings(
    losses: Sequence[StageLoss], heads: pl.DataFrame, fitted: Collection[str], windows: int
) -> tuple[Finding, ...]:
    """`fitted` are the names of the parameters, `windows` is the number of those held out."""
    found = [_outputs(heads)]
    if losses:
        found.insert(0, _loss(losses, windows))
        if any(loss.stage == TUNED_STAGE for loss in losses):
            found.insert(1, _tuning(losses))
    return (*found, *_lost_zeros(heads, fitted))


def _loss(losses: Sequence[StageLoss], windows: int) -> Finding:
    stages = {loss.stage: loss for loss in losses}
    own, bare, fitted = (stages[name] for name in (OWN, SWAPPED, FITTED))
    cost, gain = bare.over_own, fitted.gain
    assert cost is not None
    assert gain is not None
    if cost.low is None or gain.low is None or gain.high is None:
        what = "one window tells no interval"
    elif gain.low > 0:
        regained = f", {percent(min(gain.value / cost.value, 1.0))} of what the swap cost" if cost.low > 0 else ""
        what = f"calibration regains {gain.value:.3f} nats{regained}"
    elif gain.high < 0:
        what = f"calibration makes it worse by {-gain.value:.3f} nats"
    else:
        what = "calibration makes no difference that these windows can show"
    return Finding(
        "loss",
        sentence(
            f"the loss on {windows} held-out windows is {own.loss.value:.3f} nats with the model's own attention, "
            f"{bare.loss.value:.3f} after the swap and {fitted.loss.value:.3f} calibrated: {what}."
        ),
        "A change counts when the interval of the paired differences lies on one side of 0.",
        _numbers(fitted),
    )


def _tuning(losses: Sequence[StageLoss]) -> Finding:
    tuned = next(loss for loss in losses if loss.stage == TUNED_STAGE)
    gain = tuned.gain
    assert gain is not None
    if gain.low is None or gain.high is None or gain.low <= 0 <= gain.high:
        what = "makes no difference that these windows can show"
    else:
        what = f"{'gains' if gain.value > 0 else 'loses'} {abs(gain.value):.3f} nats on the held-out windows"
    return Finding(
        "fine-tuning",
        f"Fine-tuning {what}: {tuned.loss.value:.3f} nats.",
        "A change counts when the interval of the paired differences lies on one side of 0.",
        _numbers(tuned),
    )


def _numbers(stage: StageLoss) -> dict[str, Fact]:
    found: dict[str, Fact] = {"loss": stage.loss.value}
    for name, interval in (("over_own", stage.over_own), ("gain", stage.gain)):
        if interval is not None:
            found |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return found


def _outputs(heads: pl.DataFrame) -> Finding:
    before, after = (float(heads.select(pooled(name)).item()) for name in ("error_before", "error_after"))
    return Finding(
        "outputs",
        f"The outputs of the heads are off by {percent(before)} of their size after the swap, "
        f"by {percent(after)} calibrated.",
        "Sum of squares of the difference from the model's own outputs, over that of the own outputs, on the queries "
        "that were fitted.",
        {"before": before, "after": after, "heads": len(heads)},
    )


def _lost_zeros(heads: pl.DataFrame, fitted: Collection[str]) -> tuple[Finding, ...]:
    """Who is free to become softmax again, does: the outputs to match are those of softmax."""
    shapes = sorted(set(fitted) - {"t"})
    hint = f"; learn=false in the spec keeps {', '.join(shapes)} as given" if shapes else ""
    dense = heads.filter((pl.col("zeros_before") > _WAS_SPARSE) & (pl.col("zeros_after") < _IS_DENSE))
    if dense.is_empty():
        return ()
    told = count_of(len(dense), len(heads), "has given up its zeros", "have given up their zeros")
    return (
        Finding(
            "zeros",
            sentence(f"{told}: what comes nearest to softmax is softmax{hint}."),
            f"Share of visible keys with a weight of exactly 0: above {percent(_WAS_SPARSE)} after the swap, below "
            f"{percent(_IS_DENSE)} calibrated.",
            {"heads": len(dense), "of": len(heads)},
            tuple(zip(dense["layer"].to_list(), dense["head"].to_list(), strict=True)),
        ),
    )
