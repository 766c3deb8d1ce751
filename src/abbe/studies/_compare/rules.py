"""The tables of a comparison, from records.

Capacity is found as in `abbe capacity`, but always over the loss of the baseline: a normalizer that is worse than the
baseline by more than tau with all its keys has no capacity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
from torch import Tensor

from ...measures import USUAL_SIZE, bootstrap_interval, resampled_means
from ...results import Estimate
from ...runs.inputs import Settings, plain_settings, window_settings
from ...words.names import BASELINE, JUMPS, RENORMALISED
from .._shared.estimates import paired_gain, resampled_estimate, share_right, window_numbers
from .._shared.prompts import DECOYS, DEPTHS, Prompt
from .._shared.truncation import COARSE, EXACT, Curve
from .._shared.truncation import interval as crossing_interval
from .result import Comparison

SELECTIVITY = ("effective_tokens", "active", "zeros", "separability", "separable", "distance_per_token")
Record = Mapping[str, Any]  # "windows", "capacity", "sensitivity" and "theory" of one normalizer, or one of these


@dataclass(frozen=True)
class CompareSettings:
    """Everything besides model and text that decides the numbers."""

    length: int
    windows: int
    queries: int
    tau: float
    needle_lengths: tuple[int, ...]
    prompts: int  # of each kind, length and depth
    calibrate: bool
    seed: int
    level: float
    resamples: int
    grid: str = COARSE  # of the capacity search

    def reading(self) -> Settings:
        """How windows are read."""
        return window_settings(self.length, self.windows, self.queries, self.seed, self.level, self.resamples)

    def as_json(self) -> dict[str, Any]:
        return plain_settings(self) | {
            "size": USUAL_SIZE, "depths": list(DEPTHS), "capacity_over": BASELINE, "needle_words": "of the text",
            "needle_decoys": DECOYS,
        }  # fmt: skip


# -- Tables -----------------------------------------------------------------------------------------------------------


def comparison_table(
    records: Mapping[str, Record], speed: Mapping[str, Mapping[str, Any]], needle: pl.DataFrame,
    settings: CompareSettings,
) -> pl.DataFrame:  # fmt: skip
    """A row for every normalizer, the baseline first."""
    baseline, rows = records[BASELINE], []
    for name, record in records.items():
        numbers = {column: window_numbers(record["windows"][column]) for column in SELECTIVITY}
        numbers["separable_gain"] = numbers["separable"] - window_numbers(baseline["windows"]["separable"])
        estimates = {column: mean_over(of_windows, settings) for column, of_windows in numbers.items()}
        estimates |= losses(record["windows"], baseline["windows"], settings)
        estimates |= capacities(record["capacity"], baseline["capacity"], settings)
        estimates |= sensitivities(record["sensitivity"], settings)
        row: dict[str, Any] = {"normalizer": name} | costs_row(name, record, speed)
        for column, estimate in estimates.items():
            row |= estimate.columns(column)
        whole = needle.filter((pl.col("normalizer") == name) & pl.col("kind").is_null()).to_dicts()
        rows.append(row | {f"needle_{key}": value for found in whole for key, value in found.items()})
    return Comparison.frame().of(rows)


def losses(windows: Record, baseline: Record, settings: CompareSettings) -> dict[str, Estimate]:
    """Loss, perplexity, and the change from the baseline in nats and as a share of its loss."""
    loss, before = window_numbers(windows["loss"]), window_numbers(baseline["loss"])
    mean, mean_before = (resampled_means(x, settings.resamples, settings.seed) for x in (loss, before))
    change, change_mean = (loss - before).mean(), mean - mean_before
    measured = {
        "loss": (loss.mean(), mean),
        "perplexity": (loss.mean().exp(), mean.exp()),
        "loss_change": (change, change_mean),
        "loss_rise": (change / before.mean(), change_mean / mean_before),
    }
    return {name: resampled_estimate(*each, len(loss), settings.level) for name, each in measured.items()}


def mean_over(values: Tensor, settings: CompareSettings) -> Estimate:
    """Mean over the windows that have the number."""
    drawn = resampled_means(values, settings.resamples, settings.seed)
    return resampled_estimate(values.nanmean(), drawn, int((~torch.isnan(values)).sum()), settings.level)


def sensitivities(record: Record, settings: CompareSettings) -> dict[str, Estimate]:
    """Sensitivity of alternative and baseline at equal selectivity, and their ratio; none if no head matches."""
    if not record["alternative"]:
        return {}
    mine, theirs = window_numbers(record["alternative"]), window_numbers(record["baseline"])
    drawn, drawn_theirs = (resampled_means(x, settings.resamples, settings.seed) for x in (mine, theirs))
    ratio = mine.mean() / theirs.mean()
    return {
        "sensitivity": mean_over(mine, settings),
        "sensitivity_own": mean_over(theirs, settings),
        "sensitivity_ratio": resampled_estimate(ratio, drawn / drawn_theirs, len(mine), settings.level),
    }


def costs_row(name: str, record: Record, speed: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The columns that have no interval."""
    seconds, memory, sensitivity = speed["seconds"], speed["megabytes"], record["sensitivity"]
    known = memory[name] is not None and memory[BASELINE] is not None
    return {
        "temperature": sensitivity["temperature"],
        "matched_heads": sensitivity["matched"] / sensitivity["heads"],
        JUMPS: sensitivity["jumps"],
        "sensitivity_theory": record["theory"],
        "time_ratio": seconds[name] / seconds[BASELINE],
        "seconds": seconds[name],
        "extra_megabytes": memory[name] - memory[BASELINE] if known else None,
    }


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
    estimates = {
        "capacity": mine.capacity(settings.tau, drawn, settings.level),
        "capacity_ratio": Estimate(float(ratio), *crossing_interval(ratios, settings.level, len(mine.baseline))),
    }
    # An unknown value has no interval.
    return {name: one if math.isfinite(one.value) else Estimate(math.nan) for name, one in estimates.items()}


def needle_table(
    prompts: Sequence[Prompt], margins_of: Mapping[str, Sequence[float]], settings: CompareSettings
) -> pl.DataFrame:
    """A row for every normalizer and cell: all; each kind; each kind and length, or depth, or both.

    Accuracy has Wilson's interval, the margin one by resampling prompts. All answered the same prompts; gains are over
    the baseline, which has none itself.
    """
    cells: dict[tuple[Any, Any, Any], list[int]] = {}
    for place, prompt in enumerate(prompts):
        kind, length, depth = prompt.kind, prompt.length, prompt.depth
        keys = ((None, None), (length, None), (None, depth), (length, depth))
        for key in ((None, None, None), *((kind, *each) for each in keys)):
            cells.setdefault(key, []).append(place)
    rows = []
    for name, margins in margins_of.items():
        for (kind, length, depth), places in cells.items():
            row = {"normalizer": name, "kind": kind, "length": length, "depth": depth, "prompts": len(places)}
            row["chance"] = sum(prompts[place].chance for place in places) / len(places)
            before, mine = ([of[place] > 0 for place in places] for of in (margins_of[BASELINE], margins))
            values = torch.tensor([margins[place] for place in places], dtype=torch.float64)
            ends = bootstrap_interval(values, settings.level, settings.resamples, settings.seed)
            row |= share_right(sum(mine), len(mine), settings.level).columns("accuracy")
            row |= Estimate(float(values.mean()), *map(float, ends)).columns("margin")
            rows.append(row | ({} if name == BASELINE else paired_gain(before, mine, settings.level).columns("gain")))
    return Comparison.frame("needle").of(rows)
