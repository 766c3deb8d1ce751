"""Differences of numbers that need all windows at once: the decay exponent of heads, and critical N.

What is special: both sides are resampled by the same draws, so the interval of a difference is paired although these
numbers are not means over windows. The p value of an exponent comes from a t test over jackknife pseudo-values, which
for a mean would be the paired t test itself. Critical N is a step of a grid, so it has an interval but no p value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...measures import critical_n, interval_ends, resampled_counts, resampled_means, weighted_decay_exponents
from ...runs.settings import Settings
from ...runs.tables import Record
from .paired import Columns, Records, columns_of, paired_p

DECAY = "decay_exponent"
LEVEL = 0.01  # of the test behind critical N, as in the report
CRITICAL = f"critical_n@{LEVEL:g}"
_SUMS = "decay/"
_DISTANCE = ("distance/value", "distance/control")
_Sides = tuple[Sequence[Record], Sequence[Record]]


def fitted_rows(
    first: Records, second: Records, names: Sequence[str], settings: Settings
) -> tuple[list[Columns], list[str]]:
    """Rows for the table of differences, and a sentence for each number that cannot be compared."""
    lengths = [length for length in first if length in second]
    every = [record for length in lengths for record in first[length]], [r for n in lengths for r in second[n]]
    rows, left_out = _decay(every, settings)
    for length in lengths:
        more, why = _critical(length, (first[length], second[length]), names, settings)
        rows += more
        left_out += why
    return rows, left_out


# -- Decay exponents ---------------------------------------------------------------------------------------------------


def _decay(sides: _Sides, settings: Settings) -> tuple[list[Columns], list[str]]:
    keys = [key for key in sides[0][0] if key.startswith(_SUMS)]
    if not keys or any(key not in record for key in keys for side in sides for record in side):
        return [], ["The decay exponent is not compared: these runs did not keep the sums that it is fitted to."]
    sums = [
        {key.removeprefix(_SUMS): torch.stack([record[key] for record in side]).double() for key in keys}
        for side in sides
    ]
    # A window counts where both sides have rows.
    absent = ~((sums[0]["rows"] > 0) & (sums[1]["rows"] > 0))
    for side in sums:
        side["rows"] = side["rows"].masked_fill(absent, 0.0)
    count = len(absent)
    of_heads = _exponents(sums, torch.ones(1, count, dtype=torch.float64))
    if bool((of_heads[1] - of_heads[0]).isnan().all()):
        why = "all queries see the same number of keys; measure several lengths (--lengths 64,128,256)"
        return [], [f"The decay exponent is not compared: {why}."]
    drawn = _exponents(sums, resampled_counts(count, settings.resamples, settings.seed))
    # With one window left out, the slope of a head may be undefined: the mean is then over the other heads.
    spared = _exponents(sums, torch.ones(count, count, dtype=torch.float64) - torch.eye(count, dtype=torch.float64))
    together = [[x.flatten(1).nanmean(1) for x in sides] for sides in (of_heads, drawn, spared)]
    return [
        _decay_rows((of_heads, drawn, spared), settings, of_heads=True),
        _decay_rows(together, settings, of_heads=False),
    ], []


def _exponents(sums: Sequence[Mapping[str, Tensor]], counts: Tensor) -> list[Tensor]:
    return [weighted_decay_exponents(side, counts) for side in sums]


def _decay_rows(exponents: Sequence[Sequence[Tensor]], settings: Settings, *, of_heads: bool) -> Columns:
    """From exponents of both sides: (1, ...), (resample, ...) and (window left out, ...)."""
    once, drawn, spared = exponents
    first, second = (x[0] for x in once)
    difference, windows = second - first, len(spared[0])
    again = (drawn[1] - drawn[0]).flatten(1) if of_heads else (drawn[1] - drawn[0])[:, None]
    low, high = (end.view(difference.shape) for end in interval_ends(again, settings.level, windows))
    pseudo = windows * difference - (windows - 1) * (spared[1] - spared[0])
    if windows < 2:
        low = high = torch.full_like(difference, torch.nan)
    p = paired_p(pseudo)
    return columns_of(DECAY, None, first, second, difference, (low, high), p, settings, of_heads=of_heads)


# -- Critical N --------------------------------------------------------------------------------------------------------


def _critical(length: int, sides: _Sides, names: Sequence[str], settings: Settings) -> tuple[list[Columns], list[str]]:
    """One row of all heads at one length."""
    start = f"Critical N at {length:,} tokens is not compared"
    if any(key not in record for key in _DISTANCE for side in sides for record in side):
        return [], [f"{start}: these runs did not keep the distances that it tests."]
    means = [[torch.stack([record[key] for record in side]) for key in _DISTANCE] for side in sides]
    usable = [
        place
        for place in range(len(settings.sizes))
        if not any(bool(x[..., place].nanmean(0).isnan().all()) for side in means for x in side)
    ]
    grid = [settings.sizes[place] for place in usable]
    if not grid:
        return [], [f"{start}: no set size leaves keys out."]
    heads = int((~means[0][0][..., usable].nanmean(0).isnan()).any(-1).sum())
    if 2 / math.comb(2 * heads, heads) > LEVEL:  # the least p value of two samples of so many heads
        return [], [f"{start}: with {heads} heads the test cannot distinguish anything from chance."]
    values = [_tested([x.nanmean(0) for x in side], usable, grid) for side in means]
    if any(value is None for value in values):
        which = " and ".join(name for name, value in zip((names[0], names[-1]), values, strict=True) if value is None)
        return [], [f"{start}: on {which} every selection up to N = {grid[-1]} differs from random."]
    ends = _critical_ends(means, usable, grid, settings, len(sides[0]))
    a, b, low, high, p = torch.tensor([*values, *ends, math.nan], dtype=torch.float64).unbind()
    return [columns_of(CRITICAL, length, a, b, b - a, (low, high), p, settings, of_heads=False)], []


def _critical_ends(
    means: Sequence[Sequence[Tensor]], usable: Sequence[int], grid: Sequence[int], settings: Settings, windows: int
) -> tuple[float, float]:
    """Interval of the difference; NaN if a resample has no critical N. A tenth of the resamples, as in the table."""
    count = settings.resamples // 10 or 1
    drawn = [zip(*(resampled_means(x, count, settings.seed) for x in side), strict=True) for side in means]
    differences = []
    for pair in zip(*drawn, strict=True):
        first, second = (_tested(side, usable, grid) for side in pair)
        differences.append(math.nan if first is None or second is None else float(second - first))
    if windows < 2 or any(map(math.isnan, differences)):
        return math.nan, math.nan
    low, high = interval_ends(torch.tensor(differences, dtype=torch.float64)[:, None], settings.level, windows)
    return float(low), float(high)


def _tested(side: Sequence[Any], usable: Sequence[int], grid: Sequence[int]) -> int | None:
    """Critical N of means (layer, head, N) of the distance and its control."""
    true, control = (x[..., list(usable)].reshape(-1, len(usable)).T.contiguous() for x in side)
    return critical_n(true, control, grid, (LEVEL,)).critical[LEVEL]
