"""From the parts of an experiment to its tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from scipy import stats

from ...words.lab import CHOICE
from .configuration import Configuration
from .reading import ALL_QUANTITIES
from .result import ALERT_SCHEMA, CURVE_SCHEMA, LENGTH_SCHEMA, SUMMARY_SCHEMA, TABLE_SCHEMA

ROSE = 1.05  # times the first loss: it has risen, beyond what batches differ by
LAST = 0.8  # the training loss at the end is the mean over readings from this share of the run on
Part = tuple[Configuration, Mapping[str, Any]]


@dataclass(frozen=True)
class Tables:
    """What a judge looks at."""

    table: pl.DataFrame
    curves: pl.DataFrame
    lengths: pl.DataFrame
    alerts: pl.DataFrame
    summary: pl.DataFrame
    warnings: pl.DataFrame
    roc: pl.DataFrame


def run_table(parts: Sequence[Part]) -> pl.DataFrame:
    rows = [
        _row(run, choice, content["steps"], seed)
        for run, (choice, content) in enumerate(parts)
        for seed in content["seeds"]
    ]
    return pl.DataFrame(rows, schema=TABLE_SCHEMA, orient="row")


def _row(run: int, choice: Configuration, steps: Sequence[int], seed: Mapping[str, Any]) -> dict[str, Any]:
    start, losses = seed["start"], seed["losses"]
    last = [loss for step, loss in zip(steps, losses, strict=True) if step > LAST * choice.steps]
    broken = any(loss is None for loss in losses) or seed["loss"] is None
    end = None if broken else math.fsum(last) / len(last)
    half = next(
        (step for step, loss in zip(steps, losses, strict=True) if loss is not None and loss <= start / 2), None
    )
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
        for run, (_, content) in enumerate(parts)
        for seed in content["seeds"]
    ]
    return pl.concat(frames)


def length_table(parts: Sequence[Part]) -> pl.DataFrame:
    rows = [
        (run, seed["seed"], int(length), accuracy)
        for run, (_, content) in enumerate(parts)
        for seed in content["seeds"]
        for length, accuracy in seed["lengths"].items()
    ]
    return pl.DataFrame(rows, schema=LENGTH_SCHEMA, orient="row")


def alert_table(parts: Sequence[Part]) -> pl.DataFrame:
    rows = [
        (run, seed["seed"], rule, step)
        for run, (_, content) in enumerate(parts)
        for seed in content["seeds"]
        for rule, step in seed["alerts"].items()
    ]
    return pl.DataFrame(rows, schema=ALERT_SCHEMA, orient="row")


def summary_table(table: pl.DataFrame, level: float) -> pl.DataFrame:
    """A row for each choice but the rate, in the order in which they were asked for."""
    groups = table.partition_by(*CHOICE, maintain_order=True)
    return pl.DataFrame([_summary(group, level) for group in groups], schema=SUMMARY_SCHEMA, orient="row")


def _summary(rows: pl.DataFrame, level: float) -> dict[str, Any]:
    best = best_run(rows)
    chosen = rows.filter(pl.col("run") == best)
    accuracy, low, high = mean_interval(chosen["accuracy"].to_list(), level, (0.0, 1.0))
    sensitivity = mean_interval([x for _, x in rate_sensitivities(rows)], level, (0.0, math.inf))
    return {
        **{name: rows[name][0] for name in CHOICE}, "best_rate": chosen["rate"][0], "best_run": best,
        "accuracy": accuracy, "low": low, "high": high, "loss": chosen["loss"].mean(),
        "half_step": chosen["half_step"].median(), "runs": len(rows), "failed": int(rows["failed"].sum()),
        "diverged": int(rows["diverged"].sum()), "rate_sensitivity": sensitivity[0],
        "rate_sensitivity_low": sensitivity[1], "rate_sensitivity_high": sensitivity[2],
        "largest_logit": chosen["largest_logit"].max(),
    }  # fmt: skip


def best_run(rows: pl.DataFrame) -> int:
    """The rate of the lowest training loss, mean over seeds; a run that diverged counts with its first loss."""
    capped = pl.min_horizontal(pl.col("train_loss").fill_null(math.inf), "start_loss")
    means = rows.group_by("run", maintain_order=True).agg(capped.mean().alias("end")).sort("end", maintain_order=True)
    return int(means["run"][0])


def rate_sensitivities(rows: pl.DataFrame) -> list[tuple[int, float]]:
    """By seed: the mean over rates of min(loss, first loss) minus the best loss (arXiv 2309.14322)."""
    capped = pl.min_horizontal(pl.col("train_loss").fill_null(math.inf), "start_loss")
    by_seed = rows.group_by("seed", maintain_order=True).agg((capped.mean() - capped.min()).alias("x"))
    return [(seed, x) for seed, x in by_seed.iter_rows()]


def mean_interval(
    values: Sequence[float], level: float, within: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, float | None, float | None]:
    """Mean, and Student's interval for it, cut off at what is possible; none from fewer than two values."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None, None
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1) / len(values))
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1)) * spread
    return mean, max(within[0], mean - half), min(within[1], mean + half)
