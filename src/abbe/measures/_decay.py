"""Decay exponent: gamma in (largest weight) ~ n^-gamma, over rows of all lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ._bootstrap import interval_ends, resampled_counts
from ._rows import Rows, RowSummary

_ADDED = ("rows", "x", "y", "xx", "xy")


@dataclass(frozen=True, eq=False)
class DecayReading:
    """What a block of rows adds to the regression of `decay_exponent`.

    Attributes:
        x: ln n, (head, query).
        y: ln of the largest weight, (head, query).
        defined: bool (head, query), the rows that count.
    """

    x: Tensor
    y: Tensor
    defined: Tensor

    def sums(self) -> dict[str, Tensor]:
        """Sums for a regression, and the extremes of x, by name: all (head,)."""
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
    """The reading of a block for `update` and `decay_exponent`. Rows of one key or without weight do not count.

    Args:
        rows: a block of attention rows.

    Returns:
        One reading, "decay".

    Examples:
        >>> logits = torch.randn(2, 5, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> abbe.measures.decay(rows)["decay"].sums()["rows"].tolist()
        [5.0, 5.0]
    """
    return decay_readings(rows.summary)


def decay_readings(rows: RowSummary) -> dict[str, DecayReading]:
    facts = rows.facts
    defined = (facts.keys >= 2) & (facts.largest > 0)
    largest = torch.where(defined, facts.largest.double(), 1.0)
    return {"decay": DecayReading(facts.keys.double().clamp(min=1).log(), largest.log(), defined)}


def decay_exponent(
    sums: Mapping[str, Tensor], level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """How fast the largest weight fades as the context grows: gamma in (largest weight) ~ n^-gamma.

    Least squares of ln(largest weight) on ln n over all rows with n >= 2; the interval by resampling windows. High
    means that the head fades as the context grows (1: like a uniform head), 0 that it holds its focus.

    Args:
        sums: of single windows, by name ("x", "xx", ...), each (window, ...), from `decay` and `update`.
        level: of the interval, in (0, 1).
        resamples: >= 1.
        seed: of the draws.

    Returns:
        Exponent, low and high end, each (...). NaN where all n are equal; no interval from fewer than two windows.

    Examples:
        >>> logits = torch.zeros(1, 8, 8).masked_fill(~torch.ones(8, 8).tril().bool(), -torch.inf)
        >>> uniform = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> sums = abbe.measures.decay(uniform)["decay"].sums()
        >>> windows = {name: torch.stack([part, part]) for name, part in sums.items()}
        >>> [round(float(x), 6) for x in abbe.measures.decay_exponent(windows)]
        [1.0, 1.0, 1.0]
    """
    shape = sums["x"].shape[1:]
    flat, measured = _flat(sums)
    value, resampled = _value_and_resampled(flat, resamples, seed)
    windows = measured.sum(0)
    none = (windows < 2) | value.isnan()
    low, high = (torch.where(none, torch.nan, end).view(shape) for end in interval_ends(resampled, level, windows))
    return value.view(shape), low, high


def mean_decay_exponent(
    sums: Mapping[str, Tensor], level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean exponent of all heads, and its interval by resampling windows with all their heads.

    High (1) means that heads fade with the context like uniform ones, 0 that they hold their focus.

    Args:
        sums: of single windows, as for `decay_exponent`.
        level: of the interval, in (0, 1).
        resamples: >= 1.
        seed: of the draws.

    Returns:
        Mean exponent, low and high end: numbers.

    Examples:
        >>> logits = torch.zeros(1, 8, 8).masked_fill(~torch.ones(8, 8).tril().bool(), -torch.inf)
        >>> uniform = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> sums = abbe.measures.decay(uniform)["decay"].sums()
        >>> windows = {name: torch.stack([part, part]) for name, part in sums.items()}
        >>> round(float(abbe.measures.mean_decay_exponent(windows)[0]), 6)
        1.0
    """
    flat, measured = _flat(sums)
    exponents, resampled = _value_and_resampled(flat, resamples, seed)
    value, windows = exponents.nanmean(), measured.any(1).sum()
    none = (windows < 2) | value.isnan()
    ends = interval_ends(resampled.nanmean(1, keepdim=True), level, windows)
    low, high = (torch.where(none, torch.nan, end[0]) for end in ends)
    return value, low, high


def weighted_decay_exponents(sums: Mapping[str, Tensor], counts: Tensor) -> Tensor:
    """Decay exponents of weighted windows.

    High (1) means that heads fade with the context, 0 that they hold their focus. The same counts for two models on the
    same windows give paired differences; counts of 1 except for one window, a jackknife.

    Args:
        sums: of single windows, as for `decay_exponent`.
        counts: how often each window counts, (weighting, window).

    Returns:
        Exponents, (weighting, ...); NaN where all n are equal.

    Examples:
        >>> logits = torch.zeros(1, 8, 8).masked_fill(~torch.ones(8, 8).tril().bool(), -torch.inf)
        >>> uniform = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> sums = abbe.measures.decay(uniform)["decay"].sums()
        >>> windows = {name: torch.stack([part, part]) for name, part in sums.items()}
        >>> [round(float(x), 6) for x in abbe.measures.weighted_decay_exponents(windows, torch.eye(2))]
        [1.0, 1.0]
    """
    flat, _ = _flat(sums)
    return _slope(flat, counts.double()).view(len(counts), *sums["x"].shape[1:])


def _flat(sums: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """The sums as (window, cell), neutral where a window has no row; and where it has one."""
    flat = {name: sums[name].double().reshape(len(sums["x"]), -1) for name in (*_ADDED, "smallest", "largest")}
    measured = flat["rows"] > 0  # false for NaN, too
    neutral = dict.fromkeys(_ADDED, 0.0) | {"smallest": torch.inf, "largest": -torch.inf}
    return {name: torch.where(measured, flat[name], fill) for name, fill in neutral.items()}, measured


def _value_and_resampled(flat: Mapping[str, Tensor], resamples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Exponents of all windows together, (cell,), and of every resample, (resample, cell)."""
    windows = len(flat["x"])
    value = _slope(flat, torch.ones(1, windows, dtype=torch.float64))[0]
    return value, _slope(flat, resampled_counts(windows, resamples, seed))


def _slope(flat: Mapping[str, Tensor], counts: Tensor) -> Tensor:
    """-slope of every resample, (resample, cell); NaN where all its rows have one n."""
    rows, x, y, xx, xy = (counts @ flat[name] for name in _ADDED)
    drawn = counts.unsqueeze(-1) > 0
    smallest = torch.where(drawn, flat["smallest"], torch.inf).amin(1)
    largest = torch.where(drawn, flat["largest"], -torch.inf).amax(1)
    varies = largest > smallest
    spread = torch.where(varies, rows * xx - x * x, torch.nan)
    return -(rows * xy - x * y) / spread
