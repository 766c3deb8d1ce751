"""The capacity of every normalizer, by the algorithm of `abbe capacity`: always over the loss of the baseline.

What all keys of a normalizer cost counts, too: one that is worse than the baseline by more than tau has no capacity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...words.names import RENORMALISED
from .._engine.capacity.curve import Curve
from .._engine.capacity.intervals import Ends, interval
from .._engine.capacity.search import EXACT
from .result import CompareSettings

Record = Mapping[str, Any]  # as it is kept: "untouched", "full", and losses by size as "points"
Estimate = tuple[float, float, float]  # value, low, high; NaN where there is none


def curve_record(curve: Curve) -> dict[str, Any]:
    points = dict(zip(curve.sizes, curve.truncated.tolist(), strict=True))
    return {"untouched": curve.untouched, "full": curve.full.tolist(), "points": points}


def recorded_curve(record: Record, baseline: Record, settings: CompareSettings) -> Curve:
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

    The ratio is that of crossings, not of whole numbers: rounded up, small ones would stand still or jump.
    """
    mine, theirs = (recorded_curve(one, baseline, settings) for one in (record, baseline))
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
    """There is no interval around what is unknown."""
    if not math.isfinite(value):
        return math.nan, math.nan, math.nan
    low, high = (math.nan if end is None else end for end in ends)
    return float(value), low, high


def window_numbers(values: Sequence[float | None]) -> Tensor:
    """NaN where a loss was not finite, which JSON knows as null."""
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)
