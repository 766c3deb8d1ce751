"""The result of a calibration: losses on held-out windows, errors and parameters of every head, and findings."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import torch

from ...measures import enough_windows
from ...models import plan
from ...normalizers import Normalizer
from ...results import Estimate, Result
from ...views import TextTable, View
from ...words.finding import Fact, Finding
from ...words.frames import EACH_HEAD, column, frame
from ...words.manifest import model_name, part_of, text_name
from ...words.names import BASELINE
from ...words.numbers import heads_of, many, percent, sentence
from .._shared.estimates import mean_estimate

CALIBRATED, TUNED = "calibrated.safetensors", "tuned.safetensors"
SWAPPED, FITTED, FINETUNED = "swapped", "calibrated", "fine-tuned"  # stages, after the baseline
COLUMNS = {SWAPPED: "before", FITTED: "after", FINETUNED: "tuned"}  # error_before, ...
_WAS_SPARSE, _IS_DENSE = 0.1, 0.01  # shares of zeros: far enough apart that small changes do not count
_SAME_OUTPUT, _FALL = 1e-4, 10.0  # the error is one of squares: 1 % of the output, and clearly less than before
_RESUMED = "what an interrupted run resumes from"


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


def _stage_losses(losses: Mapping[str, Sequence[float]], settings: Mapping[str, Any]) -> tuple[StageLoss, ...]:
    """Stages in the order in which they were measured, the baseline first."""
    asked = {key: settings[key] for key in ("level", "resamples", "seed")}
    values = [torch.tensor(of_windows, dtype=torch.float64) for of_windows in losses.values()]
    changes = [(now - values[0], before - now) for before, now in pairwise(values)]
    stages = zip(losses, values, [(), *changes], strict=False)  # none without a loss
    return tuple(StageLoss(stage, *(mean_estimate(x, **asked) for x in (loss, *more))) for stage, loss, more in stages)


def pooled(error: str) -> pl.Expr:
    """A relative error over several heads, weighted by their energies; null if none has it."""
    energy = pl.col("energy")
    together = (pl.col(error) * energy).sum() / energy.sum()
    return pl.when(pl.col(error).is_not_null().any()).then(together).alias(error)


def _stages(what: str, meaning: str) -> list[Any]:
    after = {SWAPPED: "the bare swap", FITTED: "calibration", FINETUNED: "fine-tuning; null without"}
    return [
        column(f"{what}_{COLUMNS[stage]}", float, f"{meaning}, after {name}", label=stage, share=True)
        for stage, name in after.items()
    ]


@dataclass(frozen=True, eq=False, kw_only=True)
class Calibration(Result, study="calibrate", json_file="calibration.json", drawn=True):
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

    beside: ClassVar[tuple[str, ...]] = (CALIBRATED, TUNED)
    offers: ClassVar[str] = "swap"
    files: ClassVar[Mapping[str, str]] = {
        CALIBRATED: 'the swap, for `abbe.swap(model, "file:...")`',
        TUNED: "the same after fine-tuning (with --finetune)",
        "layers/": f"a part per layer: {_RESUMED}",
        "losses.json": _RESUMED,
        "tuning.safetensors": f"{_RESUMED} (with --finetune)",
    }

    table: pl.DataFrame = frame(
        "a fitted head",
        *(EACH_HEAD[0], column("name", str, "path of the layer's module"), EACH_HEAD[1]),
        column("spec", str, "of its normalizer"),
        column("energy", float, "sum of squares of the baseline's output"),
        *_stages("error", "squared change of its output over `energy`"),
        *_stages("zeros", "share of visible keys with a weight of exactly 0"),
    )
    parameters: pl.DataFrame = frame(
        "a fitted number, after the last stage",
        *(*EACH_HEAD, column("parameter", str, "its name in the spec")),
        *(column("start", float, "before fitting"), column("value", float, "after fitting")),
    )
    spec: str | Mapping[str, str]
    normalizers: Mapping[str, Normalizer] = field(default_factory=dict)
    losses: tuple[StageLoss, ...]
    findings: tuple[Finding, ...]
    manifest: Mapping[str, Any]
    file: Path | None = None

    @classmethod
    def of(
        cls, spec: str | Mapping[str, str], losses: Mapping[str, Sequence[float]], table: pl.DataFrame,
        parameters: pl.DataFrame, manifest: Mapping[str, Any], *, fitted: pl.DataFrame | None = None, **more: Any,
    ) -> Calibration:  # fmt: skip
        """What the measurements say; nothing is measured here.

        Args:
            spec: of the normalizer, or patterns with their specs.
            losses: of every held-out window, by stage, the baseline first.
            table: the columns of `Calibration.table`.
            parameters: those of `Calibration.parameters`.
            manifest: with the windows held out, and level, resamples and seed in its settings.
            fitted: the parameters before fine-tuning, if there was any.
            more: normalizers and file.
        """
        stages, held_out = _stage_losses(losses, manifest["settings"]), len(manifest["held_out"])
        first = parameters if fitted is None else fitted
        said = _findings(stages, table, first, held_out, manifest["settings"]["level"])
        return cls(
            spec=spec, losses=stages, table=table, parameters=parameters, findings=said, manifest=manifest, **more
        )  # fmt: skip

    def __repr__(self) -> str:
        losses = "".join(f", loss {stage.loss.value:.3f} {stage.stage}" for stage in self.losses)
        return f"Calibration({self.spec!r}, {self.manifest['model']['name']}, {len(self.table)} heads{losses})"

    @property
    def layers(self) -> pl.DataFrame:
        """A row for each layer: errors of the outputs of its fitted heads together, zeros as means over them."""
        errors = [pooled(f"error_{when}") for when in COLUMNS.values()]
        zeros = [pl.col(f"zeros_{when}").mean() for when in COLUMNS.values()]
        return self.table.group_by("layer", "name", maintain_order=True).agg(*errors, *zeros, heads=pl.len())

    def save_swap(self, path: str | os.PathLike[str], model: object) -> None:
        """Write the fitted swap for a model into one safetensors file, for `swap(model, "file:PATH")`.

        Args:
            path: of the file.
            model: that it was fitted to.
        """
        plan(model, self.normalizers).save(path)

    def _content(self) -> dict[str, Any]:
        spec = self.spec if isinstance(self.spec, str) else dict(self.spec)
        losses, file = [asdict(loss) for loss in self.losses], None if self.file is None else str(self.file)
        return super()._content() | {"spec": spec, "losses": losses, "layers": self.layers.to_dicts(), "file": file}

    @classmethod
    def _from_content(cls, content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        estimates = ("loss", "over_baseline", "gain")
        losses = tuple(
            StageLoss(kept["stage"], *(kept[name] and Estimate(**kept[name]) for name in estimates))
            for kept in content["losses"]
        )
        file = next((folder / name for name in (TUNED, CALIBRATED) if (folder / name).is_file()), None)
        return super()._from_content(content, folder) | {"spec": content["spec"], "losses": losses, "file": file}

    def view(self) -> View:
        spec = self.spec
        spec = spec if isinstance(spec, str) else "; ".join(f"{pattern}={rule}" for pattern, rule in spec.items())
        windows, held_out = (len(self.manifest.get(name) or ()) for name in ("windows", "held_out"))
        tokens = many(part_of(self.manifest, "settings").get("length", 0), "token")
        fitted = f"fitted on {many(windows, 'window')} of {tokens}, {held_out} held out"
        stages = [name for name in COLUMNS.values() if not self.table[f"error_{name}"].is_null().all()]
        titles = {"error": "Squared error of the outputs, by layer", "zeros": "Weights that are exactly 0, by layer"}
        by_layer = [
            self._shown(title, "layer", *(f"{what}_{name}" for name in stages), rows=self.layers)
            for what, title in titles.items()
        ]
        return self._view(
            f"What does {spec} cost {model_name(self.manifest)}, and what does calibration regain?",
            f"on {text_name(self.manifest)}: {fitted}",
            tables=[self._loss_table(), *by_layer],
        )

    def _loss_table(self) -> TextTable:
        stages = [(stage.stage, (stage.loss, stage.over_baseline, stage.gain)) for stage in self.losses]
        rows = [(name, *("" if x is None else x.text("{:z.3f}".format) for x in numbers)) for name, numbers in stages]
        columns, title = ("stage", "loss", "over baseline", "gain"), "Loss on held-out windows, nats per token"
        return TextTable(title, columns, rows, note="gain: reduction from the stage before", breaks=("(",))


# -- Findings ---------------------------------------------------------------------------------------------------------


def _findings(
    losses: Sequence[StageLoss], heads: pl.DataFrame, fitted: pl.DataFrame, windows: int, level: float
) -> tuple[Finding, ...]:
    """`fitted` are the parameters before fine-tuning, `windows` is the number of those held out."""
    stages = {loss.stage: loss for loss in losses}
    shapes = fitted.filter(~pl.col("parameter").str.contains(r"(^|\.)t$"))  # all but temperatures
    before, after = pl.col("error_before"), pl.col("error_after")
    undone = heads.join(shapes, ["layer", "head"], "semi")
    undone = undone.filter((after < _SAME_OUTPUT) & (_FALL * after < before))
    findings = [_softmax_again(undone, shapes, len(heads))] if len(undone) else []
    findings += _losses(stages, windows, enough_windows(level), undone=len(undone) > 0) if losses else []
    return (*findings, _outputs(heads), *_lost_zeros(heads, undone))


def _softmax_again(undone: pl.DataFrame, shapes: pl.DataFrame, of: int) -> Finding:
    """A normalizer that can turn back into softmax does, as it is fitted to the outputs of softmax."""
    moved = shapes.join(undone, ["layer", "head"], "semi").group_by("parameter", maintain_order=True).mean()
    went = [f"{row['parameter']} from {row['start']:.2f} to {row['value']:.2f}" for row in moved.to_dicts()]
    zeros = [float(undone.select(pl.col(f"zeros_{when}").mean()).item()) for when in ("before", "after")]
    if zeros[0] - zeros[1] > _IS_DENSE:
        went.append(f"zeros from {percent(zeros[0])} to {percent(zeros[1])}")
    return Finding(
        "softmax again",
        sentence(
            f"{heads_of(len(undone), of, 'is', 'are')} softmax again: on average, {', '.join(went)}; "
            f"without learn=true in the spec, {', '.join(moved['parameter'])} would stay as given."
        ),
        f"Heads with a learned parameter besides the temperature whose output error {FITTED} is below "
        f"{percent(_SAME_OUTPUT, 2)}, and less than 1/{_FALL:g} of that after the swap.",
        {"heads": len(undone), "of": of, "zeros_before": zeros[0], "zeros_after": zeros[1]},
        _places(undone),
    )


def _places(heads: pl.DataFrame) -> tuple[tuple[int, int], ...]:
    return tuple(heads.select("layer", "head").iter_rows())


def _losses(stages: Mapping[str, StageLoss], windows: int, needed: int, *, undone: bool) -> list[Finding]:
    """What the swap cost, what calibration regained, and what fine-tuning gained."""
    baseline, bare, fitted = (stages[name] for name in (BASELINE, SWAPPED, FITTED))
    too_few = f"too few held-out windows to show a change, {needed} are needed" if windows < needed else ""
    rule = (
        f"A change counts if the interval of the paired differences lies on one side of 0 and comes from {needed} "
        "windows or more: from n windows it contains the true change in at most 1 - 2^(1-n) of cases."
    )
    words = (
        f"The loss on {many(windows, 'held-out window')} is {baseline.loss.value:.3f} nats for the unchanged model, "
        f"{bare.loss.value:.3f} after the swap and {fitted.loss.value:.3f} calibrated: "
        f"{too_few or _calibration_words(bare, fitted, undone)}."
    )
    findings = [Finding("loss", words, rule, _numbers(fitted))]
    if (tuned := stages.get(FINETUNED)) is not None and tuned.gain is not None:
        loss, gain = f"{tuned.loss.value:.3f} nats", tuned.gain
        what = f"{'gains' if gain.value > 0 else 'loses'} {abs(gain.value):.3f} nats on the held-out windows"
        what = what if gain.above(0) or gain.below(0) else "makes no difference that these windows can show"
        words = f"After fine-tuning the loss is {loss}: {too_few}." if too_few else f"Fine-tuning {what}: {loss}."
        findings.append(Finding("fine-tuning", words, rule, _numbers(tuned)))
    return findings


def _calibration_words(bare: StageLoss, fitted: StageLoss, undone: bool) -> str:
    """What enough windows show; what undoing the swap saves is no share of its cost regained."""
    cost, gain = bare.over_baseline, fitted.gain
    if cost is None or gain is None or not (gain.above(0) or gain.below(0)):
        return "calibration makes no difference that these windows can show"
    if gain.below(0):
        return f"calibration makes it worse by {-gain.value:.3f} nats"
    regained = f", {percent(min(gain.value / cost.value, 1.0))} of what the swap cost" if cost.above(0) else ""
    return f"calibration regains {gain.value:.3f} nats{', with heads that are softmax again' if undone else regained}"


def _numbers(stage: StageLoss) -> dict[str, Fact]:
    over, gain = (change or Estimate(math.nan) for change in (stage.over_baseline, stage.gain))
    return {"loss": stage.loss.value, **over.columns("over_baseline"), **gain.columns("gain")}


def _outputs(heads: pl.DataFrame) -> Finding:
    errors = {when: heads.select(pooled(f"error_{when}")).item() for when in COLUMNS.values()}
    errors = {when: float(error) for when, error in errors.items() if error is not None}
    tuned = f", {percent(errors['tuned'])} {FINETUNED}" if "tuned" in errors else ""
    return Finding(
        "outputs",
        f"The outputs of the heads are off by {percent(errors['before'])} of their size after the swap, "
        f"{percent(errors['after'])} {FITTED}{tuned}.",
        "Sum of squares of the difference from the model's outputs before the swap, over that of those outputs, on the "
        "queries that were fitted.",
        {**errors, "heads": len(heads)},
    )


def _lost_zeros(heads: pl.DataFrame, undone: pl.DataFrame) -> list[Finding]:
    """Other heads; zeros are counted after the last stage, from which parameters and file come as well."""
    stage = FINETUNED if heads["error_tuned"].is_not_null().any() else FITTED
    dense = heads.filter((pl.col("zeros_before") > _WAS_SPARSE) & (pl.col(f"zeros_{COLUMNS[stage]}") < _IS_DENSE))
    dense = dense.join(undone, ["layer", "head"], "anti")
    if not len(dense):
        return []
    lost = heads_of(len(dense), len(heads), "has lost its zeros", "have lost their zeros")
    rule = f"Share of visible keys with a weight of exactly 0: above {percent(_WAS_SPARSE)} after the swap, below "
    rule += f"{percent(_IS_DENSE)} {stage}."
    return [Finding("zeros", sentence(f"{lost}."), rule, {"heads": len(dense), "of": len(heads)}, _places(dense))]
