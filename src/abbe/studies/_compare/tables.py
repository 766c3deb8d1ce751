"""From what was measured of every normalizer to one row each, with intervals over the same windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import torch
from torch import Tensor

from ...measures import interval_ends, resampled_counts, resampled_means
from ...words.names import BASELINE, JUMPS
from .reading import SELECTIVITY
from .result import MEASURED, PLAIN, SCHEMA, CompareSettings
from .truncated import capacity

Record = Mapping[str, Any]  # "windows", "capacity", "sensitivity" and "theory" of one normalizer
Ends = tuple[float, float, float]  # value, low, high; NaN where there is none


def comparison_table(
    records: Mapping[str, Record], speed: Mapping[str, Mapping[str, Any]], needle: pl.DataFrame,
    settings: CompareSettings,
) -> pl.DataFrame:  # fmt: skip
    """A row for every normalizer; "own" is the first."""
    own = records[BASELINE]
    rows = []
    for name, record in records.items():
        found = (
            losses(record["windows"], own["windows"], settings)
            | _selectivity(record["windows"], own["windows"], settings)
            | capacities(record["capacity"], own["capacity"], settings)
            | _sensitivities(record["sensitivity"], settings)
        )
        first: dict[str, Any] = {"normalizer": name, JUMPS: record["sensitivity"]["jumps"]}
        rows.append(first | _columns(found) | _plain(name, record, speed) | _needle(needle, name))
    return pl.DataFrame(rows, schema=SCHEMA)


def losses(windows: Record, own: Record, settings: CompareSettings) -> dict[str, Ends]:
    """Loss, perplexity, and the change from own in nats and as a share of own's loss."""
    loss, before = numbers(windows["loss"]), numbers(own["loss"])
    mean, mean_before = (resampled_means(x, settings.resamples, settings.seed) for x in (loss, before))
    change, change_mean = loss - before, mean - mean_before
    return {
        "loss": _ends(loss.mean(), mean, len(loss), settings),
        "perplexity": _ends(loss.mean().exp(), mean.exp(), len(loss), settings),
        "loss_change": _ends(change.mean(), change_mean, len(loss), settings),
        "loss_rise": _ends(change.mean() / before.mean(), change_mean / mean_before, len(loss), settings),
    }


def _selectivity(windows: Record, own: Record, settings: CompareSettings) -> dict[str, Ends]:
    found = {name: _mean(numbers(windows[name]), settings) for name in SELECTIVITY}
    gain = numbers(windows["told_apart"]) - numbers(own["told_apart"])
    return found | {"told_apart_gain": _mean(gain, settings)}


def capacities(record: Record, own: Record, settings: CompareSettings) -> dict[str, Ends]:
    """N by the rise over own's loss, and its ratio to that of own, on the same windows."""
    windows = len(record["full"])
    counts = torch.cat([torch.ones(1, windows, dtype=torch.float64), resampled_windows(windows, settings)])
    mine, theirs = (_capacity(part, own, counts, settings) for part in (record, own))
    ratio = mine / theirs
    found = {"capacity": mine, "capacity_ratio": ratio}
    return {name: _known(_ends(each[0], each[1:], windows, settings)) for name, each in found.items()}


def resampled_windows(windows: int, settings: CompareSettings) -> Tensor:
    """How often each window is drawn, (resample, window)."""
    return resampled_counts(windows, settings.resamples, settings.seed)


def _known(ends: Ends) -> Ends:
    """What lies below all N that were tried, or above all keys, is unknown: no number is made up for it."""
    value, low, high = (end if 0 < end < math.inf else math.nan for end in ends)
    return value, low, high


def _capacity(record: Record, own: Record, counts: Tensor, settings: CompareSettings) -> Tensor:
    points = {int(size): found for size, found in record["points"].items()}
    full, before = numbers(record["full"]), numbers(own["full"])
    return capacity(points, full, before, counts, settings.tau, settings.length)


def _sensitivities(record: Record, settings: CompareSettings) -> dict[str, Ends]:
    if not record["alternative"]:
        return dict.fromkeys(("sensitivity", "sensitivity_own", "sensitivity_ratio"), (math.nan,) * 3)
    mine, own = numbers(record["alternative"]), numbers(record["own"])
    of_mine, of_own = (resampled_means(x, settings.resamples, settings.seed) for x in (mine, own))
    return {
        "sensitivity": _mean(mine, settings),
        "sensitivity_own": _mean(own, settings),
        "sensitivity_ratio": _ends(mine.mean() / own.mean(), of_mine / of_own, len(mine), settings),
    }


def _plain(name: str, record: Record, speed: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    seconds, memory = speed["seconds"], speed["megabytes"]
    known = memory[name] is not None and memory[BASELINE] is not None
    found = {
        "temperature": record["sensitivity"]["temperature"],
        "matched_heads": record["sensitivity"]["matched"] / record["sensitivity"]["heads"],
        "sensitivity_theory": record["theory"],
        "time_ratio": seconds[name] / seconds[BASELINE],
        "seconds": seconds[name],
        "extra_megabytes": memory[name] - memory[BASELINE] if known else None,
    }
    assert set(found) == set(PLAIN)
    return found


def _needle(needle: pl.DataFrame, name: str) -> dict[str, float | None]:
    whole = needle.filter((pl.col("normalizer") == name) & pl.col("kind").is_null())
    names = [f"{what}{end}" for what in ("accuracy", "gain", "margin") for end in ("", "_low", "_high")]
    return {f"needle_{column}": whole[column][0] if whole.height else None for column in names}


def _columns(found: Mapping[str, Ends]) -> dict[str, float | None]:
    assert set(found) <= set(MEASURED)
    return {
        f"{name}{end}": value if math.isfinite(value) else None
        for name, ends in found.items()
        for end, value in zip(("", "_low", "_high"), ends, strict=True)
    }


def _mean(values: Tensor, settings: CompareSettings) -> Ends:
    there = int((~torch.isnan(values)).sum())
    return _ends(values.nanmean(), resampled_means(values, settings.resamples, settings.seed), there, settings)


def _ends(value: Tensor, resampled: Tensor, windows: int, settings: CompareSettings) -> Ends:
    """With the quantiles of the resamples; there is no interval from a single window, or around what is not finite."""
    if windows < 2 or not math.isfinite(value):
        return float(value), math.nan, math.nan
    low, high = interval_ends(resampled[:, None], settings.level, windows)
    return float(value), float(low), float(high)


def numbers(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)
