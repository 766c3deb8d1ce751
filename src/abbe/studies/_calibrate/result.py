"""The result of a calibration: losses on held-out windows, errors and parameters of every head."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import torch
from torch import Tensor

from ..._arguments import whole
from ...measures import bootstrap_interval
from ...models import plan
from ...normalizers import Normalizer
from ...results import Result, as_rows, as_text, read_content, tables_from
from ...words.finding import Finding, findings_from
from .._engine.settings import Settings

CALIBRATED, TUNED, FINDINGS = "calibrated.safetensors", "tuned.safetensors", "calibration.json"
HEADS_SCHEMA: dict[str, Any] = {
    "layer": pl.Int32, "name": pl.String, "head": pl.Int32, "spec": pl.String, "energy": pl.Float64,
    "error_before": pl.Float64, "error_after": pl.Float64, "error_tuned": pl.Float64,
    "zeros_before": pl.Float64, "zeros_after": pl.Float64, "zeros_tuned": pl.Float64,
}  # fmt: skip
PARAMETERS_SCHEMA: dict[str, Any] = {
    "layer": pl.Int32, "head": pl.Int32, "parameter": pl.String, "start": pl.Float64, "value": pl.Float64,
}  # fmt: skip


@dataclass(frozen=True)
class CalibrationSettings:
    """Everything that decides the numbers, beside model and text."""

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
        rules = self.rules if isinstance(self.rules, str) else dict(self.rules)
        return {"spec": rules, "length": self.base.lengths[0]} | counts | shared


@dataclass(frozen=True)
class Interval:
    """A mean over windows with its interval.

    Attributes:
        value: the mean.
        low: lower end; None where one window is too few for an interval.
        high: upper end; None where one window is too few for an interval.
    """

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class StageLoss:
    """The loss of one stage on the held-out windows, in nats per token.

    `over_baseline` is what it has more than the baseline, `gain` what it has less than the stage before; both
    come from paired windows. They are None for the baseline.
    """

    stage: str
    loss: Interval
    over_baseline: Interval | None = None
    gain: Interval | None = None


def stage_losses(losses: Mapping[str, Sequence[float]], settings: Settings) -> tuple[StageLoss, ...]:
    """Stages in the order in which they were measured, the baseline first."""
    stages: list[StageLoss] = []
    before: Tensor | None = None
    baseline: Tensor | None = None
    for stage, values in losses.items():
        now = torch.tensor(values, dtype=torch.float64)
        over = None if baseline is None else _interval(now - baseline, settings)
        gain = None if before is None else _interval(before - now, settings)
        stages.append(StageLoss(stage, _interval(now, settings), over, gain))
        baseline, before = now if baseline is None else baseline, now
    return tuple(stages)


def _interval(values: Tensor, settings: Settings) -> Interval:
    low, high = bootstrap_interval(values, settings.level, settings.resamples, settings.seed)
    none = len(values) < 2
    return Interval(float(values.mean()), None if none else float(low), None if none else float(high))


def pooled(error: str) -> pl.Expr:
    """An error of several heads together: each relative to its energy, so they are weighted by it; else null."""
    energy = pl.col("energy")
    together = (pl.col(error) * energy).sum() / energy.sum()
    return pl.when(pl.col(error).is_not_null().any()).then(together).alias(error)


@dataclass(frozen=True, eq=False)
class Calibration(Result):
    """The result of `calibrate`.

    Attributes:
        spec: what was asked for.
        normalizers: for each pattern its fitted normalizer; `swap(model, calibration.normalizers)` applies them. Empty
            if it was opened from a folder: `file` holds them.
        losses: on held-out windows, stage by stage; empty for a model without a loss.
        table: a row for each fitted head: error of its output over the size of the baseline's (`energy`, a sum of
            squares), and the share of visible keys with a weight of exactly 0; each after the bare swap (`_before`),
            calibrated (`_after`) and fine-tuned (`_tuned`, null without fine-tuning).
        parameters: a row for each fitted number, as it is after the last stage; so are normalizers and file.
        findings: what this means, in sentences.
        manifest: model, text, settings, windows, seconds, and what was left out and why.
        file: the fitted swap in the folder, for `swap(model, "file:...")`, or None without a folder.
    """

    study: ClassVar[str] = "calibrate"
    page: ClassVar[str] = "calibrate.html"
    beside: ClassVar[tuple[str, ...]] = (CALIBRATED, TUNED)

    spec: str | Mapping[str, str]
    normalizers: Mapping[str, Normalizer] = field(repr=False)
    losses: tuple[StageLoss, ...]
    table: pl.DataFrame = field(repr=False)
    parameters: pl.DataFrame = field(repr=False)
    findings: tuple[Finding, ...]
    manifest: Mapping[str, Any] = field(repr=False)
    file: Path | None

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
            "spec": self.spec if isinstance(self.spec, str) else dict(self.spec),
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
        StageLoss(one["stage"], *(one[key] and Interval(**one[key]) for key in ("loss", "over_baseline", "gain")))
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
