"""The result of a calibration: losses on held-out windows, errors and parameters of every head, and findings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import torch

from ..._arguments import whole
from ...measures import enough_windows
from ...models import plan
from ...normalizers import Normalizer
from ...results import Estimate, Result, as_rows, as_text, read_content, tables_from
from ...runs.settings import Settings
from ...words.finding import Fact, Finding, findings_from
from ...words.names import BASELINE, FINETUNED, FITTED, SWAPPED
from ...words.numbers import heads_of, percent, sentence
from .._shared.calibrated import learnable_rules
from .._shared.estimates import mean_estimate

CALIBRATED, TUNED, FINDINGS = "calibrated.safetensors", "tuned.safetensors", "calibration.json"
HEADS_SCHEMA: dict[str, Any] = {
    "layer": pl.Int32, "name": pl.String, "head": pl.Int32, "spec": pl.String, "energy": pl.Float64,
    "error_before": pl.Float64, "error_after": pl.Float64, "error_tuned": pl.Float64,
    "zeros_before": pl.Float64, "zeros_after": pl.Float64, "zeros_tuned": pl.Float64,
}  # fmt: skip
PARAMETERS_SCHEMA: dict[str, Any] = {
    "layer": pl.Int32, "head": pl.Int32, "parameter": pl.String, "start": pl.Float64, "value": pl.Float64,
}  # fmt: skip
_WAS_SPARSE, _IS_DENSE = 0.1, 0.01  # shares of zeros: far enough apart that small changes do not count
_SAME_OUTPUT, _FALL = 1e-4, 10.0  # the error is one of squares: 1 % of the output, and clearly less than before


@dataclass(frozen=True)
class CalibrationSettings:
    """Everything besides model and text that decides the numbers."""

    rules: str | Mapping[str, str]
    windows: int
    held_out: int
    steps: int
    finetune: int
    base: Settings

    def __post_init__(self) -> None:
        for what, least in (("windows", 1), ("held_out", 1), ("steps", 0), ("finetune", 0)):
            whole(what, getattr(self, what), least)

    def as_json(self) -> dict[str, Any]:
        base = self.base.as_json()
        shared = {key: base[key] for key in ("queries", "seed", "level", "resamples")}
        counts = {key: getattr(self, key) for key in ("windows", "held_out", "steps", "finetune")}
        # What is fitted is not in the spec: a folder of a version that fitted something else is another run.
        spec = {"spec": _plain(self.rules), "fitted": learnable_rules(self.rules)}
        return spec | {"length": self.base.lengths[0]} | counts | shared


def _plain(rules: str | Mapping[str, str]) -> str | dict[str, str]:
    return rules if isinstance(rules, str) else dict(rules)


@dataclass(frozen=True)
class StageLoss:
    """The loss of one stage on the held-out windows, in nats per token.

    `over_baseline` is its excess over the baseline, `gain` its reduction from the stage before, both from paired
    windows; None for the baseline.
    """

    stage: str
    loss: Estimate
    over_baseline: Estimate | None = None
    gain: Estimate | None = None


def stage_losses(losses: Mapping[str, Sequence[float]], settings: Settings) -> tuple[StageLoss, ...]:
    """Stages in the order in which they were measured, the baseline first."""
    stages: list[StageLoss] = []
    values = [torch.tensor(of_windows, dtype=torch.float64) for of_windows in losses.values()]
    for number, (stage, now) in enumerate(zip(losses, values, strict=True)):
        over = mean_estimate(now - values[0], settings) if number else None
        gain = mean_estimate(values[number - 1] - now, settings) if number else None
        stages.append(StageLoss(stage, mean_estimate(now, settings), over, gain))
    return tuple(stages)


def pooled(error: str) -> pl.Expr:
    """A relative error over several heads, weighted by their energies; null if none has it."""
    energy = pl.col("energy")
    together = (pl.col(error) * energy).sum() / energy.sum()
    return pl.when(pl.col(error).is_not_null().any()).then(together).alias(error)


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Result):
    """The result of `calibrate`.

    Attributes:
        spec: of the normalizer, or patterns with their specs.
        normalizers: for each pattern its fitted normalizer; `swap(model, calibration.normalizers)` applies them. Empty
            if it was opened from a folder: `file` holds them.
        losses: on held-out windows, stage by stage; empty for a model without a loss.
        table: a row for each fitted head: error of its output over the size of the baseline's (`energy`, a sum of
            squares), and the share of visible keys with a weight of exactly 0; each after the bare swap (`_before`),
            calibrated (`_after`) and fine-tuned (`_tuned`, null without fine-tuning).
        parameters: a row for each fitted number after the last stage, as in normalizers and file.
        findings: what this means, in sentences.
        manifest: model, text, settings, windows, seconds, and what was skipped and why.
        file: the fitted swap in the folder, for `swap(model, "file:...")`, or None without a folder.
    """

    study: ClassVar[str] = "calibrate"
    page: ClassVar[str] = "calibrate.html"
    beside: ClassVar[tuple[str, ...]] = (CALIBRATED, TUNED)

    spec: str | Mapping[str, str]
    normalizers: Mapping[str, Normalizer]
    losses: tuple[StageLoss, ...]
    table: pl.DataFrame
    parameters: pl.DataFrame
    findings: tuple[Finding, ...]
    manifest: Mapping[str, Any]
    file: Path | None

    def __repr__(self) -> str:
        losses = "".join(f", loss {stage.loss.value:.3f} {stage.stage}" for stage in self.losses)
        return f"Calibration({self.spec!r}, {self.manifest['model']['name']}, {len(self.table)} heads{losses})"

    @property
    def layers(self) -> pl.DataFrame:
        """A row for each layer: errors of the outputs of its fitted heads together, zeros as means over them."""
        errors = [pooled(f"error_{when}") for when in ("before", "after", "tuned")]
        zeros = [pl.col(f"zeros_{when}").mean() for when in ("before", "after", "tuned")]
        return self.table.group_by("layer", "name", maintain_order=True).agg(*errors, *zeros, heads=pl.len())

    def save_swap(self, path: str | os.PathLike[str], model: object) -> None:
        """Write the fitted swap for a model into one safetensors file, for `swap(model, "file:PATH")`.

        Args:
            path: of the file.
            model: that it was fitted to.
        """
        plan(model, self.normalizers).save(path)

    def as_json(self) -> dict[str, Any]:
        return {
            "spec": _plain(self.spec),
            "losses": [asdict(loss) for loss in self.losses],
            "findings": [asdict(finding) for finding in self.findings],
            **as_rows({"layers": self.layers, "table": self.table, "parameters": self.parameters}),
            "manifest": dict(self.manifest),
            "file": None if self.file is None else str(self.file),
        }

    def _files(self) -> dict[str, bytes | str]:
        return {FINDINGS: as_text(self.as_json())}


def opened_calibration(folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Calibration:
    content = read_content(folder / FINDINGS, stored)
    losses = tuple(
        StageLoss(one["stage"], *(one[key] and Estimate(**one[key]) for key in ("loss", "over_baseline", "gain")))
        for one in content["losses"]
    )
    return Calibration(
        spec=content["spec"],
        normalizers={},
        losses=losses,
        **tables_from(content, {"table": HEADS_SCHEMA, "parameters": PARAMETERS_SCHEMA}),
        findings=findings_from(content["findings"]),
        manifest=manifest,
        file=next((folder / name for name in (TUNED, CALIBRATED) if (folder / name).is_file()), None),
    )


# -- Findings ---------------------------------------------------------------------------------------------------------


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


def _calibration_words(cost: Estimate | None, gain: Estimate | None, undone: bool) -> str:
    """From enough windows; what undoing the swap saves is no share of its cost regained."""
    assert cost is not None
    assert gain is not None
    if gain.above(0):
        costly = f", {percent(min(gain.value / cost.value, 1.0))} of what the swap cost"
        regained = costly if cost.above(0) else ""
        regained = ", with heads that are softmax again" if undone else regained
        return f"calibration regains {gain.value:.3f} nats{regained}"
    if gain.below(0):
        return f"calibration makes it worse by {-gain.value:.3f} nats"
    return "calibration makes no difference that these windows can show"


def _tuning(tuned: StageLoss, windows: int, needed: int) -> Finding:
    if windows < needed:
        words = f"After fine-tuning the loss is {tuned.loss.value:.3f} nats: {_too_few(needed)}."
    else:
        words = f"Fine-tuning {_tuning_words(tuned.gain)}: {tuned.loss.value:.3f} nats."
    return Finding("fine-tuning", words, _change_rule(needed), _numbers(tuned))


def _tuning_words(gain: Estimate | None) -> str:
    assert gain is not None
    if not gain.above(0) and not gain.below(0):
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
    for name, change in (("over_baseline", stage.over_baseline), ("gain", stage.gain)):
        facts |= {} if change is None else change.columns(name)
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
