"""The tables of an experiment, from its finished runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from scipy import stats

from ...words.lab import CHOICE
from .configuration import Configuration
from .reading import ALL_QUANTITIES
from .result import ALERT_SCHEMA, CURVE_SCHEMA, LENGTH_SCHEMA, SUMMARY_SCHEMA, TABLE_SCHEMA

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
