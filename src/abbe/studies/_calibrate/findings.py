"""The findings of a calibration, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from ...measures import enough_windows
from ...words.finding import Fact, Finding
from ...words.names import BASELINE, FINETUNED, FITTED, SWAPPED
from ...words.numbers import heads_of, percent, sentence
from .result import Interval, StageLoss, pooled

_WAS_SPARSE, _IS_DENSE = 0.1, 0.01  # shares of zeros: far enough apart that small changes do not count
_SAME_OUTPUT, _FALL = 1e-4, 10.0  # the error is one of squares: 1 % of the output, and clearly less than before


def calibration_findings(
    losses: Sequence[StageLoss], heads: pl.DataFrame, fitted: pl.DataFrame, windows: int, level: float
) -> tuple[Finding, ...]:
    """`fitted` are the parameters before fine-tuning, `windows` is the number of those held out."""
    needed, stages = enough_windows(level), {loss.stage: loss for loss in losses}
    shapes = fitted.filter(~pl.col("parameter").str.contains(r"(^|\.)t$"))  # all but temperatures
    before, after = pl.col("error_before"), pl.col("error_after")
    undone = heads.join(shapes, ["layer", "head"], "semi")
    undone = undone.filter((after < _SAME_OUTPUT) & (_FALL * after < before))
    findings = [_softmax_again(undone, shapes, len(heads))] if len(undone) else []
    if losses:
        findings.append(_loss(stages, windows, needed, undone=bool(len(undone))))
    if FINETUNED in stages:
        findings.append(_tuning(stages[FINETUNED], windows, needed))
    return (*findings, _outputs(heads), *_lost_zeros(heads, undone))


def _softmax_again(undone: pl.DataFrame, shapes: pl.DataFrame, of: int) -> Finding:
    """A normalizer that can turn back into softmax does, as it is fitted to the outputs of softmax."""
    moved = shapes.join(undone, ["layer", "head"], "semi").group_by("parameter", maintain_order=True).mean()
    went = [f"{row['parameter']} from {row['start']:.2f} to {row['value']:.2f}" for row in moved.to_dicts()]
    zeros = [float(undone.select(pl.col(f"zeros_{when}").mean()).item()) for when in ("before", "after")]
    if zeros[0] - zeros[1] > _IS_DENSE:
        went.append(f"zeros from {percent(zeros[0])} to {percent(zeros[1])}")
    names = ", ".join(moved["parameter"])
    return Finding(
        "softmax again",
        sentence(
            f"{heads_of(len(undone), of, 'is', 'are')} softmax again: on average, {', '.join(went)}; "
            f"without learn=true in the spec, {names} would stay as given."
        ),
        f"Heads with a learned parameter besides the temperature whose output error {FITTED} is below "
        f"{percent(_SAME_OUTPUT, 2)}, and less than 1/{_FALL:g} of that after the swap.",
        {"heads": len(undone), "of": of, "zeros_before": zeros[0], "zeros_after": zeros[1]},
        _places(undone),
    )


def _places(heads: pl.DataFrame) -> tuple[tuple[int, int], ...]:
    return tuple(zip(heads["layer"].to_list(), heads["head"].to_list(), strict=True))


def _loss(stages: Mapping[str, StageLoss], windows: int, needed: int, *, undone: bool) -> Finding:
    baseline, bare, fitted = (stages[name] for name in (BASELINE, SWAPPED, FITTED))
    what = _too_few(needed) if windows < needed else _calibration_words(bare.over_baseline, fitted.gain, undone)
    held_out = f"{windows} held-out window{'' if windows == 1 else 's'}"
    return Finding(
        "loss",
        sentence(
            f"the loss on {held_out} is {baseline.loss.value:.3f} nats for the unchanged model, "
            f"{bare.loss.value:.3f} after the swap and {fitted.loss.value:.3f} calibrated: {what}."
        ),
        _change_rule(needed),
        _numbers(fitted),
    )


def _calibration_words(cost: Interval | None, gain: Interval | None, undone: bool) -> str:
    """From enough windows; what undoing the swap saves is no share of its cost regained."""
    assert cost is not None
    assert gain is not None
    if gain.low is not None and gain.low > 0:
        costly = cost.low is not None and cost.low > 0
        regained = f", {percent(min(gain.value / cost.value, 1.0))} of what the swap cost" if costly else ""
        regained = ", with heads that are softmax again" if undone else regained
        return f"calibration regains {gain.value:.3f} nats{regained}"
    if gain.high is not None and gain.high < 0:
        return f"calibration makes it worse by {-gain.value:.3f} nats"
    return "calibration makes no difference that these windows can show"


def _tuning(tuned: StageLoss, windows: int, needed: int) -> Finding:
    if windows < needed:
        words = f"After fine-tuning the loss is {tuned.loss.value:.3f} nats: {_too_few(needed)}."
    else:
        words = f"Fine-tuning {_tuning_words(tuned.gain)}: {tuned.loss.value:.3f} nats."
    return Finding("fine-tuning", words, _change_rule(needed), _numbers(tuned))


def _tuning_words(gain: Interval | None) -> str:
    assert gain is not None
    if gain.low is None or gain.high is None or gain.low <= 0 <= gain.high:
        return "makes no difference that these windows can show"
    return f"{'gains' if gain.value > 0 else 'loses'} {abs(gain.value):.3f} nats on the held-out windows"


def _too_few(needed: int) -> str:
    return f"too few held-out windows to show a change, {needed} are needed"


def _change_rule(needed: int) -> str:
    return (
        f"A change counts if the interval of the paired differences lies on one side of 0 and comes from {needed} "
        "windows or more: from n windows it contains the true change in at most 1 - 2^(1-n) of cases."
    )


def _numbers(stage: StageLoss) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"loss": stage.loss.value}
    for name, interval in (("over_baseline", stage.over_baseline), ("gain", stage.gain)):
        if interval is not None:
            facts |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return facts


def _outputs(heads: pl.DataFrame) -> Finding:
    stages = ("before", "after", "tuned") if _is_tuned(heads) else ("before", "after")
    errors = {stage: float(heads.select(pooled(f"error_{stage}")).item()) for stage in stages}
    tuned = f", {percent(errors['tuned'])} {FINETUNED}" if "tuned" in errors else ""
    return Finding(
        "outputs",
        f"The outputs of the heads are off by {percent(errors['before'])} of their size after the swap, "
        f"{percent(errors['after'])} {FITTED}{tuned}.",
        "Sum of squares of the difference from the model's outputs before the swap, over that of those outputs, on the "
        "queries that were fitted.",
        {**errors, "heads": len(heads)},
    )


def _is_tuned(heads: pl.DataFrame) -> bool:
    return heads["error_tuned"].is_not_null().any()


def _lost_zeros(heads: pl.DataFrame, undone: pl.DataFrame) -> tuple[Finding, ...]:
    """Other heads; zeros are counted after the last stage, from which parameters and file come as well."""
    last, stage = ("zeros_tuned", FINETUNED) if _is_tuned(heads) else ("zeros_after", FITTED)
    dense = heads.filter((pl.col("zeros_before") > _WAS_SPARSE) & (pl.col(last) < _IS_DENSE))
    dense = dense.join(undone, ["layer", "head"], "anti")
    if dense.is_empty():
        return ()
    lost = heads_of(len(dense), len(heads), "has lost its zeros", "have lost their zeros")
    return (
        Finding(
            "zeros",
            sentence(f"{lost}."),
            f"Share of visible keys with a weight of exactly 0: above {percent(_WAS_SPARSE)} after the swap, below "
            f"{percent(_IS_DENSE)} {stage}.",
            {"heads": len(dense), "of": len(heads)},
            _places(dense),
        ),
    )
