"""Decay exponent: gamma in (largest weight) ~ n^-gamma, over rows of all lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ._bootstrap import interval_ends, resampled_counts
from ._rows import Rows

_ADDED = ("rows", "x", "y", "xx", "xy")


@dataclass(frozen=True, eq=False)
class DecayReading:
    """ln n and ln of the largest weight of every row, (head, query)."""

    x: Tensor
    y: Tensor
    defined: Tensor

    def sums(self) -> dict[str, Tensor]:
        """Sums for a regression, and the extremes of x: all (head,)."""
        x, y = (torch.where(self.defined, part, 0.0).double() for part in (self.x, self.y))
        return {
            "rows": self.defined.double().sum(1),
            "x": x.sum(1),
            "y": y.sum(1),
            "xx": (x * x).sum(1),
            "xy": (x * y).sum(1),
            "smallest": torch.where(self.defined, x, torch.inf).amin(1),
            "largest": torch.where(self.defined, x, -torch.inf).amax(1),
        }


def decay(rows: Rows) -> dict[str, DecayReading]:
    """What `decay_exponent` needs of a block of rows, for `update`. Rows with one key or without weight say nothing."""
    facts = rows.facts
    defined = (facts.keys >= 2) & (facts.largest > 0)
    largest = torch.where(defined, facts.largest.double(), 1.0)
    return {"decay": DecayReading(facts.keys.double().clamp(min=1).log(), largest.log(), defined)}


def decay_exponent(
    sums: Mapping[str, Tensor], level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Exponent with its interval, (...) each, from the sums of single windows: "x", "xx", ... -> (window, ...).

    Least squares of ln(largest weight) on ln n over all rows with n >= 2; the interval by resampling windows. High
    means that the head fades as the context grows (1: like a uniform head), 0 that it holds its focus. NaN where all n
    are equal; no interval from fewer than two windows.
    """
    shape = sums["x"].shape[1:]
    flat, there = _flat(sums)
    once = torch.ones(1, len(there), dtype=torch.float64)
    value = _slope(flat, once)[0]
    low, high = interval_ends(_slope(flat, resampled_counts(len(there), resamples, seed)), level, there.sum(0))
    few = there.sum(0) < 2
    low, high = (torch.where(few | value.isnan(), torch.nan, end).view(shape) for end in (low, high))
    return value.view(shape), low, high


def mean_decay_exponent(
    sums: Mapping[str, Tensor], level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean exponent of all heads, and its interval by resampling windows with all their heads: numbers."""
    flat, there = _flat(sums)
    once = torch.ones(1, len(there), dtype=torch.float64)
    value = _slope(flat, once).nanmean()
    again = _slope(flat, resampled_counts(len(there), resamples, seed)).nanmean(1, keepdim=True)
    windows = there.any(1).sum()
    few = (windows < 2) | value.isnan()
    low, high = (torch.where(few, torch.nan, end[0]) for end in interval_ends(again, level, windows))
    return value, low, high


def _flat(sums: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """The sums as (window, cell), neutral where a window has no row; and where it has some."""
    flat = {name: sums[name].double().reshape(len(sums["x"]), -1) for name in (*_ADDED, "smallest", "largest")}
    there = flat["rows"] > 0  # false for NaN, too
    known = {name: torch.where(there, flat[name], 0.0) for name in _ADDED}
    known["smallest"] = torch.where(there, flat["smallest"], torch.inf)
    known["largest"] = torch.where(there, flat["largest"], -torch.inf)
    return known, there


def _slope(flat: Mapping[str, Tensor], counts: Tensor) -> Tensor:
    """-slope of every resample, (resample, cell); NaN where its rows have one n only."""
    rows, x, y, xx, xy = (counts @ flat[name] for name in _ADDED)
    drawn = counts.unsqueeze(-1) > 0
    smallest = torch.where(drawn, flat["smallest"], torch.inf).amin(1)
    largest = torch.where(drawn, flat["largest"], -torch.inf).amax(1)
    varies = largest > smallest
    spread = torch.where(varies, rows * xx - x * x, torch.nan)
    return -(rows * xy - x * y) / spread
