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
from .._engine.calibrated import learnable_rules
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

    `over_baseline` is its excess over the baseline, `gain` its reduction from the stage before, both from paired
    windows; None for the baseline.
    """

    stage: str
    loss: Interval
    over_baseline: Interval | None = None
    gain: Interval | None = None


def stage_losses(losses: Mapping[str, Sequence[float]], settings: Settings) -> tuple[StageLoss, ...]:
    """Stages in the order in which they were measured, the baseline first."""
    stages: list[StageLoss] = []
    values = [torch.tensor(of_windows, dtype=torch.float64) for of_windows in losses.values()]
    for number, (stage, now) in enumerate(zip(losses, values, strict=True)):
        over = _interval(now - values[0], settings) if number else None
        gain = _interval(values[number - 1] - now, settings) if number else None
        stages.append(StageLoss(stage, _interval(now, settings), over, gain))
    return tuple(stages)


def _interval(values: Tensor, settings: Settings) -> Interval:
    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean, None, None)
    low, high = bootstrap_interval(values, settings.level, settings.resamples, settings.seed)
    return Interval(mean, float(low), float(high))


def pooled(error: str) -> pl.Expr:
    """A relative error over several heads, weighted by their energies; null if none has it."""
    energy = pl.col("energy")
    together = (pl.col(error) * energy).sum() / energy.sum()
    return pl.when(pl.col(error).is_not_null().any()).then(together).alias(error)


@dataclass(frozen=True, eq=False)
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
