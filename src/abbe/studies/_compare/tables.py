"""From records to tables: one row per normalizer, and the needle test by kind of prompt, length and depth.

Capacity is found as in `abbe capacity`, but always over the loss of the baseline: a normalizer that is worse than the
baseline by more than tau with all its keys has no capacity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import torch
from torch import Tensor

from ...measures import bootstrap_interval, interval_ends, resampled_means
from ...words.names import BASELINE, JUMPS, RENORMALISED
from .._engine.capacity.curve import Curve
from .._engine.capacity.intervals import Ends, interval
from .._engine.capacity.search import EXACT
from .._engine.needles.gain import paired_gain, wilson
from .._engine.needles.prompts import Prompt
from .reading import SELECTIVITY
from .result import MEASURED, NEEDLE_SCHEMA, PLAIN, SCHEMA, CompareSettings

Record = Mapping[str, Any]  # "windows", "capacity", "sensitivity" and "theory" of one normalizer, or one of these
Estimate = tuple[float, float, float]  # value, low, high; NaN where there is none
Cell = tuple[str | None, int | None, float | None]  # kind, length and depth; None is all of them


def comparison_table(
    records: Mapping[str, Record], speed: Mapping[str, Mapping[str, Any]], needle: pl.DataFrame,
    settings: CompareSettings,
) -> pl.DataFrame:  # fmt: skip
    """A row for every normalizer, the baseline first."""
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


def window_numbers(values: Sequence[float | None]) -> Tensor:
    """NaN for a loss that was not finite, which is null in JSON."""
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)


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
    """With the quantiles of the resamples; a single window, or a value that is not finite, has no interval."""
    if windows < 2 or not math.isfinite(value):
        return float(value), math.nan, math.nan
    low, high = interval_ends(resampled[:, None], settings.level, windows)
    return float(value), float(low), float(high)


def curve_record(curve: Curve) -> dict[str, Any]:
    points = dict(zip(curve.sizes, curve.truncated.tolist(), strict=True))
    return {"untouched": curve.untouched, "full": curve.full.tolist(), "points": points}


def _recorded_curve(record: Record, baseline: Record, settings: CompareSettings) -> Curve:
    points = {int(size): losses for size, losses in record["points"].items()}
    sizes = tuple(sorted(points))
    truncated = torch.stack([window_numbers(points[size]) for size in sizes]) if sizes else torch.empty(0, 0)
    full, before = window_numbers(record["full"]), window_numbers(baseline["full"])
    return Curve(
        settings.length, RENORMALISED, None, record["untouched"], settings.grid == EXACT, sizes, before, full,
        truncated.double().view(len(sizes), len(full)),
    )  # fmt: skip


def capacities(record: Record, baseline: Record, settings: CompareSettings) -> dict[str, Estimate]:
    """N* by the rise over the baseline's loss, and its ratio to that of the baseline, on the same windows.

    The ratio is of crossings, not of whole numbers: rounded up, small ones would stand still or jump.
    """
    mine, theirs = (_recorded_curve(one, baseline, settings) for one in (record, baseline))
    drawn, drawn_theirs = (curve.resampled(settings.resamples, settings.seed) for curve in (mine, theirs))
    ratio = mine.crossing(settings.tau) / theirs.crossing(settings.tau)
    ratios = None
    if drawn is not None and drawn_theirs is not None:
        ratios = mine.crossing(settings.tau, drawn) / theirs.crossing(settings.tau, drawn_theirs)
    return {
        "capacity": _estimate(mine.needed(settings.tau), mine.ends(settings.tau, drawn, settings.level)),
        "capacity_ratio": _estimate(ratio, interval(ratios, settings.level, len(mine.baseline))),
    }


def _estimate(value: Tensor, ends: Ends) -> Estimate:
    """An unknown value has no interval."""
    if not math.isfinite(value):
        return math.nan, math.nan, math.nan
    low, high = (math.nan if end is None else end for end in ends)
    return float(value), low, high


def needle_table(
    prompts: Sequence[Prompt], margins_of: Mapping[str, Sequence[float]], level: float, resamples: int, seed: int
) -> pl.DataFrame:
    """A row for every normalizer and cell, with the accuracy of guessing among the candidates.

    All answered the same prompts; gains are over the baseline, which has none itself.
    """
    cells, baseline = _cells(prompts), margins_of[BASELINE]
    rows = []
    for name, margins in margins_of.items():
        for (kind, length, depth), places in cells.items():
            chance = sum(prompts[place].chance for place in places) / len(places)
            mine, before = ([each[place] for place in places] for each in (margins, baseline))
            row = {"normalizer": name, "kind": kind, "length": length, "depth": depth, "chance": chance}
            gain = {} if name == BASELINE else gain_numbers(before, mine, level)
            rows.append(row | cell_numbers(mine, level, resamples, seed) | gain)
    return pl.DataFrame(rows, schema=NEEDLE_SCHEMA)


def _cells(prompts: Sequence[Prompt]) -> dict[Cell, list[int]]:
    """All; each kind; each kind and length; each kind and depth; each kind, length and depth."""
    cells: dict[Cell, list[int]] = {}
    for place, prompt in enumerate(prompts):
        kind, length, depth = prompt.kind, prompt.length, prompt.depth
        keys: tuple[Cell, ...] = (
            (None, None, None), (kind, None, None), (kind, length, None), (kind, None, depth), (kind, length, depth),
        )  # fmt: skip
        for key in keys:
            cells.setdefault(key, []).append(place)
    return cells


def cell_numbers(margins: Sequence[float], level: float, resamples: int, seed: int) -> dict[str, Any]:
    """Accuracy with a Wilson interval, mean margin with an interval by resampling prompts."""
    right = sum(margin > 0 for margin in margins)
    low, high = wilson(right, len(margins), level)
    values = torch.tensor(margins, dtype=torch.float64)
    numbers = [float(x) for x in (values.mean(), *bootstrap_interval(values, level, resamples, seed))]
    margin, margin_low, margin_high = (x if math.isfinite(x) else None for x in numbers)
    return {
        "prompts": len(margins), "accuracy": right / len(margins), "accuracy_low": low, "accuracy_high": high,
        "margin": margin, "margin_low": margin_low, "margin_high": margin_high,
    }  # fmt: skip


def gain_numbers(baseline: Sequence[float], other: Sequence[float], level: float) -> dict[str, float | None]:
    """Accuracy minus the baseline's on the same prompts, with its paired interval."""
    before, after = ([margin > 0 for margin in each] for each in (baseline, other))
    return dict(zip(("gain", "gain_low", "gain_high"), paired_gain(before, after, level), strict=True))
