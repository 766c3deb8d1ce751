"""From what was measured of every normalizer to one row each, with intervals over the same windows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import polars as pl
import torch
from torch import Tensor

from ...measures import interval_ends, resampled_means
from ...words.names import BASELINE, JUMPS
from .capacities import Estimate, capacities, window_numbers
from .reading import SELECTIVITY
from .result import MEASURED, PLAIN, SCHEMA, CompareSettings

Record = Mapping[str, Any]  # "windows", "capacity", "sensitivity" and "theory" of one normalizer


def comparison_table(
    records: Mapping[str, Record], speed: Mapping[str, Mapping[str, Any]], needle: pl.DataFrame,
    settings: CompareSettings,
) -> pl.DataFrame:  # fmt: skip
    """A row for every normalizer; that of the baseline is the first."""
    baseline = records[BASELINE]
    rows = []
    for name, record in records.items():
        estimates = (
            losses(record["windows"], baseline["windows"], settings)
            | _selectivity(record["windows"], baseline["windows"], settings)
            | capacities(record["capacity"], baseline["capacity"], settings)
            | _sensitivities(record["sensitivity"], settings)
        )
        first: dict[str, Any] = {"normalizer": name, JUMPS: record["sensitivity"]["jumps"]}
        rows.append(first | _columns(estimates) | _plain(name, record, speed) | _needle(needle, name))
    return pl.DataFrame(rows, schema=SCHEMA)


def losses(windows: Record, baseline: Record, settings: CompareSettings) -> dict[str, Estimate]:
    """Loss, perplexity, and the change from the baseline in nats and as a share of its loss."""
    loss, before = window_numbers(windows["loss"]), window_numbers(baseline["loss"])
    mean, mean_before = (resampled_means(x, settings.resamples, settings.seed) for x in (loss, before))
    change, change_mean = loss - before, mean - mean_before
    return {
        "loss": _ends(loss.mean(), mean, len(loss), settings),
        "perplexity": _ends(loss.mean().exp(), mean.exp(), len(loss), settings),
        "loss_change": _ends(change.mean(), change_mean, len(loss), settings),
        "loss_rise": _ends(change.mean() / before.mean(), change_mean / mean_before, len(loss), settings),
    }


def _selectivity(windows: Record, baseline: Record, settings: CompareSettings) -> dict[str, Estimate]:
    means = {name: _mean(window_numbers(windows[name]), settings) for name in SELECTIVITY}
    gain = window_numbers(windows["separable"]) - window_numbers(baseline["separable"])
    return means | {"separable_gain": _mean(gain, settings)}


def _sensitivities(record: Record, settings: CompareSettings) -> dict[str, Estimate]:
    if not record["alternative"]:
        return dict.fromkeys(("sensitivity", "sensitivity_own", "sensitivity_ratio"), (math.nan,) * 3)
    mine, theirs = window_numbers(record["alternative"]), window_numbers(record["baseline"])
    drawn, drawn_theirs = (resampled_means(x, settings.resamples, settings.seed) for x in (mine, theirs))
    return {
        "sensitivity": _mean(mine, settings),
        "sensitivity_own": _mean(theirs, settings),
        "sensitivity_ratio": _ends(mine.mean() / theirs.mean(), drawn / drawn_theirs, len(mine), settings),
    }


def _plain(name: str, record: Record, speed: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    seconds, memory = speed["seconds"], speed["megabytes"]
    known = memory[name] is not None and memory[BASELINE] is not None
    columns = {
        "temperature": record["sensitivity"]["temperature"],
        "matched_heads": record["sensitivity"]["matched"] / record["sensitivity"]["heads"],
        "sensitivity_theory": record["theory"],
        "time_ratio": seconds[name] / seconds[BASELINE],
        "seconds": seconds[name],
        "extra_megabytes": memory[name] - memory[BASELINE] if known else None,
    }
    assert set(columns) == set(PLAIN)
    return columns


def _needle(needle: pl.DataFrame, name: str) -> dict[str, float | None]:
    whole = needle.filter((pl.col("normalizer") == name) & pl.col("kind").is_null())
    names = [f"{what}{end}" for what in ("accuracy", "gain", "margin") for end in ("", "_low", "_high")]
    return {f"needle_{column}": whole[column][0] if whole.height else None for column in names}


def _columns(estimates: Mapping[str, Estimate]) -> dict[str, float | None]:
    assert set(estimates) <= set(MEASURED)
    return {
        f"{name}{end}": value if math.isfinite(value) else None
        for name, estimate in estimates.items()
        for end, value in zip(("", "_low", "_high"), estimate, strict=True)
    }


def _mean(values: Tensor, settings: CompareSettings) -> Estimate:
    there = int((~torch.isnan(values)).sum())
    return _ends(values.nanmean(), resampled_means(values, settings.resamples, settings.seed), there, settings)


def _ends(value: Tensor, resampled: Tensor, windows: int, settings: CompareSettings) -> Estimate:
    """With the quantiles of the resamples; there is no interval from a single window, or around what is not finite."""
    if windows < 2 or not math.isfinite(value):
        return float(value), math.nan, math.nan
    low, high = interval_ends(resampled[:, None], settings.level, windows)
    return float(value), float(low), float(high)
