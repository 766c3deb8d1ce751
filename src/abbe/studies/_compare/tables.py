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

from ...measures import bootstrap_interval, resampled_means
from ...results import Estimate
from ...words.names import BASELINE, JUMPS, RENORMALISED
from .._shared.estimates import paired_gain, resampled_estimate, share_right, window_numbers
from .._shared.prompts import Prompt
from .._shared.truncation import EXACT, Curve, interval
from .result import NEEDLE_SCHEMA, PLAIN, SCHEMA, SELECTIVITY, CompareSettings

Record = Mapping[str, Any]  # "windows", "capacity", "sensitivity" and "theory" of one normalizer, or one of these
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
        name: resampled_estimate(value, resampled, len(loss), settings.level)
        for name, value, resampled in (
            ("loss", loss.mean(), mean),
            ("perplexity", loss.mean().exp(), mean.exp()),
            ("loss_change", change.mean(), change_mean),
            ("loss_rise", change.mean() / before.mean(), change_mean / mean_before),
        )
    }


def _selectivity(windows: Record, baseline: Record, settings: CompareSettings) -> dict[str, Estimate]:
    means = {name: _mean(window_numbers(windows[name]), settings) for name in SELECTIVITY}
    gain = window_numbers(windows["separable"]) - window_numbers(baseline["separable"])
    return means | {"separable_gain": _mean(gain, settings)}


def _sensitivities(record: Record, settings: CompareSettings) -> dict[str, Estimate]:
    if not record["alternative"]:
        return dict.fromkeys(("sensitivity", "sensitivity_own", "sensitivity_ratio"), Estimate(math.nan))
    mine, theirs = window_numbers(record["alternative"]), window_numbers(record["baseline"])
    drawn, drawn_theirs = (resampled_means(x, settings.resamples, settings.seed) for x in (mine, theirs))
    return {
        "sensitivity": _mean(mine, settings),
        "sensitivity_own": _mean(theirs, settings),
        "sensitivity_ratio": resampled_estimate(
            mine.mean() / theirs.mean(), drawn / drawn_theirs, len(mine), settings.level
        ),
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
    return {key: value for name, each in estimates.items() for key, value in each.columns(name).items()}


def _mean(values: Tensor, settings: CompareSettings) -> Estimate:
    """Over the windows that have the number."""
    measured = int((~torch.isnan(values)).sum())
    drawn = resampled_means(values, settings.resamples, settings.seed)
    return resampled_estimate(values.nanmean(), drawn, measured, settings.level)


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
        "capacity": _known(mine.capacity(settings.tau, drawn, settings.level)),
        "capacity_ratio": _known(Estimate(float(ratio), *interval(ratios, settings.level, len(mine.baseline)))),
    }


def _known(estimate: Estimate) -> Estimate:
    """An unknown value has no interval."""
    return estimate if math.isfinite(estimate.value) else Estimate(math.nan)


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
    values = torch.tensor(margins, dtype=torch.float64)
    margin = Estimate(*(float(x) for x in (values.mean(), *bootstrap_interval(values, level, resamples, seed))))
    accuracy = share_right(right, len(margins), level)
    return {"prompts": len(margins)} | accuracy.columns("accuracy") | margin.columns("margin")


def gain_numbers(baseline: Sequence[float], other: Sequence[float], level: float) -> dict[str, float | None]:
    """Accuracy minus the baseline's on the same prompts, with its paired interval."""
    before, after = ([margin > 0 for margin in each] for each in (baseline, other))
    return paired_gain(before, after, level).columns("gain")
