"""The result of an experiment: every run of every seed, curves, judged statements, and how well alerts warned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from ...results import TablesResult, as_csv, as_parquet, as_text, read_content, read_table, tables_from
from ...words.finding import findings_from
from ...words.lab import CHOICE
from .reading import ALL_QUANTITIES

SUMMARY = "train.json"

CHOICE_SCHEMA: dict[str, Any] = {
    name: pl.Boolean if name in ("compensated", "qk_norm") else pl.String for name in CHOICE
}
TABLE_SCHEMA: dict[str, Any] = {
    "run": pl.Int32, **CHOICE_SCHEMA, "rate": pl.Float64, "seed": pl.Int64, "accuracy": pl.Float64, "loss": pl.Float64,
    "train_loss": pl.Float64, "start_loss": pl.Float64, "half_step": pl.Int32, "failed": pl.Boolean,
    "diverged": pl.Boolean, "largest_logit": pl.Float64, **dict.fromkeys(ALL_QUANTITIES, pl.Float64),
    "temperature_end": pl.Float64, "learned": pl.String,
}  # fmt: skip
CURVE_SCHEMA: dict[str, Any] = {
    "run": pl.Int32, "seed": pl.Int64, "step": pl.Int32, "loss": pl.Float64, **dict.fromkeys(ALL_QUANTITIES, pl.Float64)
}  # fmt: skip
LENGTH_SCHEMA: dict[str, Any] = {
    "run": pl.Int32, "seed": pl.Int64, "length": pl.Int32, "accuracy": pl.Float64, "entropy": pl.Float64
}  # fmt: skip
ALERT_SCHEMA: dict[str, Any] = {"run": pl.Int32, "seed": pl.Int64, "rule": pl.String, "step": pl.Int32}
SUMMARY_SCHEMA: dict[str, Any] = {
    **CHOICE_SCHEMA, "best_rate": pl.Float64, "best_run": pl.Int32, "accuracy": pl.Float64, "low": pl.Float64,
    "high": pl.Float64, "loss": pl.Float64, "half_step": pl.Float64, "runs": pl.Int32, "failed": pl.Int32,
    "diverged": pl.Int32, "rate_sensitivity": pl.Float64, "rate_sensitivity_low": pl.Float64,
    "rate_sensitivity_high": pl.Float64, "largest_logit": pl.Float64,
}  # fmt: skip
WARNING_SCHEMA: dict[str, Any] = {
    "quantity": pl.String, "direction": pl.String, "kind": pl.String, "threshold": pl.Float64, "failing": pl.Int32,
    "healthy": pl.Int32, "warned": pl.Float64, "false_alarms": pl.Float64, "auc": pl.Float64, "auc_low": pl.Float64,
    "auc_high": pl.Float64, "lead": pl.Float64, "lead_share": pl.Float64,
}  # fmt: skip
ROC_SCHEMA: dict[str, Any] = {
    "quantity": pl.String, "direction": pl.String, "kind": pl.String, "threshold": pl.Float64,
    "false_alarms": pl.Float64, "warned": pl.Float64,
}  # fmt: skip
_SCHEMAS = {
    "summary": SUMMARY_SCHEMA, "lengths": LENGTH_SCHEMA, "alerts": ALERT_SCHEMA, "warnings": WARNING_SCHEMA,
    "roc": ROC_SCHEMA,
}  # fmt: skip
TABLE, CURVES = "runs.parquet", "curves.parquet"


@dataclass(frozen=True, eq=False, kw_only=True)
class Experiment(TablesResult):
    """The result of `train_temperature`, `train_length`, `train_recall` or `train_text`.

    A run is one choice of normalizer, temperature, optimizer and rate; every run has all seeds.

    Attributes:
        table: a row for each run and seed. `accuracy` and `loss` are on data that was never trained on, `train_loss`
            is the mean over the last fifth of the steps, `half_step` the first step that was read with at most half
            of the first loss. `failed`: the training loss ended above half of the first one; `diverged`: it ended more
            than a twentieth above the first one, or not finite. `largest_logit` is over the whole run; the monitored
            quantities are those of the last step.
        curves: loss and monitored quantities at every step that was read, by run and seed.
        lengths: accuracy and mean entropy of the attention weights (nats) at each test length, by run and seed; empty
            for tasks of one length.
        alerts: the first step at which each alert of the monitor was raised, by run and seed.
        summary: a row for each choice except for the rate: the best rate (by training loss) and its results, with an
            interval over seeds, and the sensitivity to the rate (arXiv 2309.14322): the mean over rates of the
            training loss above the best, with losses capped at the first one.
        warnings: for each monitored quantity, how well it separates runs that will fail from healthy ones before their
            loss does, at a threshold with at most 5 % false alarms, and how well the monitor's alerts do.
        roc: for each quantity and threshold, the shares of failing runs that are found and of false alarms.
        findings: statements, each judged by its rule.
        manifest: task, settings, versions, machine, seconds.
    """

    study: ClassVar[str] = "train"
    page: ClassVar[str] = "train.html"

    curves: pl.DataFrame = field(repr=False)
    lengths: pl.DataFrame = field(repr=False)
    alerts: pl.DataFrame = field(repr=False)
    summary: pl.DataFrame = field(repr=False)
    warnings: pl.DataFrame = field(repr=False)
    roc: pl.DataFrame = field(repr=False)

    @property
    def experiment(self) -> str:
        """Its name: "temperature", "length", "recall" or "text"."""
        return str(self.manifest["settings"]["experiment"])

    def __repr__(self) -> str:
        return f"Experiment({self.experiment}, {self.table['run'].n_unique()} runs, {len(self.table)} with all seeds)"

    def as_json(self) -> dict[str, Any]:
        """Everything but the curves, which are long: `curves` and curves.parquet hold them."""
        return self._content({"table": self.table} | self._tables()) | {"manifest": dict(self.manifest)}

    def _tables(self) -> dict[str, pl.DataFrame]:
        return {name: getattr(self, name) for name in _SCHEMAS}

    def _files(self) -> dict[str, bytes | str]:
        tables = self._tables()
        parquet = {TABLE: as_parquet(self.table), CURVES: as_parquet(self.curves)}
        return as_csv(tables) | {SUMMARY: as_text(self._content(tables))} | parquet


def opened_experiment(folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Experiment:
    content = read_content(folder / SUMMARY, stored)
    return Experiment(
        table=read_table(folder / TABLE, stored),
        curves=read_table(folder / CURVES, stored),
        **tables_from(content, _SCHEMAS),
        findings=findings_from(content["findings"]),
        manifest=manifest,
    )
