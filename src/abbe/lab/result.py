"""The result of an experiment, and its tables from finished runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
from scipy import stats

from ..results import TablesResult, as_csv, as_parquet, as_text, read_content, read_table, tables_from
from ..words.finding import findings_from
from ..words.lab import CHOICE
from .reading import ALL_QUANTITIES
from .run import Configuration

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
        return self._tables_and_findings({"table": self.table} | self._tables()) | {"manifest": dict(self.manifest)}

    def _tables(self) -> dict[str, pl.DataFrame]:
        return {name: getattr(self, name) for name in _SCHEMAS}

    def _files(self) -> dict[str, bytes | str]:
        tables = self._tables()
        parquet = {TABLE: as_parquet(self.table), CURVES: as_parquet(self.curves)}
        return as_csv(tables) | {SUMMARY: as_text(self._tables_and_findings(tables))} | parquet


def opened_experiment(folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Experiment:
    content = read_content(folder / SUMMARY, stored)
    return Experiment(
        table=read_table(folder / TABLE, stored),
        curves=read_table(folder / CURVES, stored),
        **tables_from(content, _SCHEMAS),
        findings=findings_from(content["findings"]),
        manifest=manifest,
    )


ROSE = 1.05  # times the first loss: a rise beyond the differences between batches
LAST = 0.8  # the final training loss is the mean over readings after this share of the run
_CAPPED = pl.min_horizontal(pl.col("train_loss").fill_null(math.inf), "start_loss")
Part = tuple[Configuration, Mapping[str, Any]]


@dataclass(frozen=True)
class Tables:
    """The tables of an `Experiment`."""

    table: pl.DataFrame
    curves: pl.DataFrame
    lengths: pl.DataFrame
    alerts: pl.DataFrame
    summary: pl.DataFrame
    warnings: pl.DataFrame
    roc: pl.DataFrame


def _seeds(parts: Sequence[Part]) -> Iterator[tuple[int, Part, Mapping[str, Any]]]:
    """Number, part and content of every seed of every run."""
    return ((run, part, seed) for run, part in enumerate(parts) for seed in part[1]["seeds"])


def run_table(parts: Sequence[Part]) -> pl.DataFrame:
    rows = [_row(run, choice, content["steps"], seed) for run, (choice, content), seed in _seeds(parts)]
    return pl.DataFrame(rows, schema=TABLE_SCHEMA, orient="row")


def _row(run: int, choice: Configuration, steps: Sequence[int], seed: Mapping[str, Any]) -> dict[str, Any]:
    start, losses = seed["start"], seed["losses"]
    curve = list(zip(steps, losses, strict=True))
    last = [loss for step, loss in curve if step > LAST * choice.steps]
    end = None if None in losses or seed["loss"] is None else math.fsum(last) / len(last)
    half = next((step for step, loss in curve if loss is not None and loss <= start / 2), None)
    logits = [x for x in seed["quantities"]["max_logit"] if x is not None]
    return {
        "run": run, **{name: getattr(choice, name) for name in CHOICE}, "rate": choice.rate, "seed": seed["seed"],
        "accuracy": seed["accuracy"], "loss": seed["loss"], "train_loss": end, "start_loss": start, "half_step": half,
        "failed": end is None or end > start / 2, "diverged": end is None or end > ROSE * start,
        "largest_logit": max(logits, default=None),
        **{name: seed["quantities"][name][-1] for name in ALL_QUANTITIES},
        "temperature_end": seed["temperature"][0], "learned": "; ".join(seed["learned"]) or None,
    }  # fmt: skip


def curve_table(parts: Sequence[Part]) -> pl.DataFrame:
    frames = [
        pl.DataFrame(
            {"step": content["steps"], "loss": seed["losses"], **seed["quantities"]},
            schema={name: kind for name, kind in CURVE_SCHEMA.items() if name not in ("run", "seed")},
        ).select(pl.lit(run, pl.Int32).alias("run"), pl.lit(seed["seed"], pl.Int64).alias("seed"), pl.all())
        for run, (_, content), seed in _seeds(parts)
    ]
    return pl.concat(frames)


def length_table(parts: Sequence[Part]) -> pl.DataFrame:
    rows = [
        (run, seed["seed"], int(length), *values)
        for run, _, seed in _seeds(parts)
        for length, values in seed["lengths"].items()
    ]
    return pl.DataFrame(rows, schema=LENGTH_SCHEMA, orient="row")


def alert_table(parts: Sequence[Part]) -> pl.DataFrame:
    rows = [(run, seed["seed"], rule, step) for run, _, seed in _seeds(parts) for rule, step in seed["alerts"].items()]
    return pl.DataFrame(rows, schema=ALERT_SCHEMA, orient="row")


def summary_table(table: pl.DataFrame, level: float) -> pl.DataFrame:
    """A row for each choice except for the rate, in the order of the runs."""
    groups = table.partition_by(*CHOICE, maintain_order=True)
    return pl.DataFrame([_summary(group, level) for group in groups], schema=SUMMARY_SCHEMA, orient="row")


def _summary(rows: pl.DataFrame, level: float) -> dict[str, Any]:
    best = best_run(rows)
    chosen = rows.filter(pl.col("run") == best)
    accuracy, low, high = mean_interval(chosen["accuracy"].to_list(), level, (0.0, 1.0))
    sensitivity = mean_interval(list(rate_sensitivities(rows).values()), level, (0.0, math.inf))
    return {
        **{name: rows[name][0] for name in CHOICE}, "best_rate": chosen["rate"][0], "best_run": best,
        "accuracy": accuracy, "low": low, "high": high, "loss": chosen["loss"].mean(),
        "half_step": chosen["half_step"].median(), "runs": len(rows), "failed": int(rows["failed"].sum()),
        "diverged": int(rows["diverged"].sum()), "rate_sensitivity": sensitivity[0],
        "rate_sensitivity_low": sensitivity[1], "rate_sensitivity_high": sensitivity[2],
        "largest_logit": chosen["largest_logit"].max(),
    }  # fmt: skip


def best_run(rows: pl.DataFrame) -> int:
    """The run with the lowest training loss on average over seeds; a run that diverged counts with its first loss."""
    ends = rows.group_by("run", maintain_order=True).agg(_CAPPED.mean().alias("end")).sort("end", maintain_order=True)
    return int(ends["run"][0])


def rate_sensitivities(rows: pl.DataFrame) -> dict[int, float]:
    """By seed: the mean over rates of min(loss, first loss) minus the best loss (arXiv 2309.14322)."""
    by_seed = rows.group_by("seed", maintain_order=True).agg((_CAPPED.mean() - _CAPPED.min()).alias("x"))
    return dict(by_seed.iter_rows())


def mean_interval(
    values: Sequence[float], level: float, within: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, float | None, float | None]:
    """Mean with Student's interval, clipped to the possible range; no interval from fewer than two values."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None, None
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1) / len(values))
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1)) * spread
    return mean, max(within[0], mean - half), min(within[1], mean + half)
