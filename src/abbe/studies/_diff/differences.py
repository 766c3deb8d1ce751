"""Two sides measured on the same windows: the difference of every measure of every head, with a paired interval.

What is special: text differs more from window to window than models differ from each other, so each window is compared
with itself. p values are those of Student's t over the windows' differences; since a table has thousands of them, a
change is decided by its q value (Benjamini and Hochberg) within the family of all heads and measures: a share of at
most 1 - level of the reported changes is expected to be chance.

Two numbers need all windows at once, the decay exponent of heads and critical N: both sides are resampled by the same
draws, so the interval of a difference is paired although these numbers are not means over windows. The p value of an
exponent comes from a t test over jackknife pseudo-values, which for a mean would be the paired t test itself. Critical
N is a step of a grid, so it has an interval but no p value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from ... import measures
from ...runs.inputs import Settings
from ...runs.tables import Record, measured_names
from .result import CRITICAL, CRITICAL_LEVEL, DECAY, LOSS, Difference

# Smaller differences are rounding, however regular they are: relative to the larger value, and to the largest value of
# the measure, since some values are nothing but rounding (the imbalance within a set of one).
ROUNDING, ROUNDING_OF_LARGEST = 1e-5, 1e-6
_EQUAL = 1e-12  # relative: differences whose spread is rounding of float64
_SUMS, _DISTANCE = "decay/", ("distance/value", "distance/control")
Records = Mapping[int, Sequence[Record]]  # by length, in the order of the windows
Losses = Mapping[int, Tensor]  # by length: one per window
_Sides = tuple[Sequence[Record], Sequence[Record]]


def difference_table(
    first: Records,
    second: Records,
    settings: Settings,
    losses: Sequence[Losses] = (),
    fitted: Sequence[pl.DataFrame] = (),
) -> pl.DataFrame:
    """All measures of all heads, the largest changes first; rows of all heads together have null as layer and head.

    `losses` holds both sides, if both predict the next token; `fitted` are rows of numbers that need all windows.
    """
    parts = [
        part
        for length, records in first.items()
        for name in measured_names([*records, *second[length]])
        for part in _measure_rows(name, length, (records, second[length]), settings)
    ]
    if losses:
        parts += [_mean_rows(LOSS, n, x, losses[1][n], settings, of_heads=False) for n, x in losses[0].items()]
    parts += fitted
    schema: Any = Difference.frame().schema
    if not parts:
        return pl.DataFrame(schema=schema)
    table = pl.concat(parts).with_columns(q_value=_q_values(parts)).fill_nan(None)
    low, high, size = pl.col("low"), pl.col("high"), pl.col("difference").abs()
    larger = pl.max_horizontal(pl.col("first").abs(), pl.col("second").abs())
    beyond = (size > ROUNDING * larger) & (size > ROUNDING_OF_LARGEST * larger.max().over("measure"))
    # Critical N has an interval and no p value.
    alone = pl.col("p_value").is_null() & ((low > 0) | (high < 0)).fill_null(False)
    table = table.with_columns(changed=((pl.col("q_value") <= 1 - settings.level).fill_null(False) | alone) & beyond)
    order = [pl.col("layer").is_not_null(), pl.col("changed"), pl.col("effect").abs().fill_null(0.0)]
    return table.sort(order, descending=True, maintain_order=True).select(*schema).cast(schema)


def _q_values(parts: Sequence[pl.DataFrame]) -> np.ndarray:
    """Benjamini and Hochberg's, within the rows of single heads and within those of all; NaN without a p value."""
    from scipy.stats import false_discovery_control  # takes long to import

    p, layer = (pl.concat([part[name] for part in parts]).to_numpy() for name in ("p_value", "layer"))
    q = np.full(len(p), np.nan)
    for family in (np.isnan(layer), ~np.isnan(layer)):
        there = family & ~np.isnan(p)
        if there.any():
            q[there] = false_discovery_control(p[there])
    return q


def _paired_p(differences: Tensor) -> Tensor:
    """(window, ...) -> (...): two-sided, of the mean over windows being 0; 1 where all are 0, NaN for one window.

    Equal differences have no spread, so t would be infinite even for two windows: the sign test gives 2^(1 - windows).
    """
    from scipy.stats import t  # slow to import

    there = (~differences.isnan()).sum(0)
    mean = differences.nanmean(0)
    spread = ((differences - mean) ** 2).nansum(0) / (there - 1).clamp(min=1)
    error = (spread / there.clamp(min=1)).sqrt()
    flat = error <= _EQUAL * mean.abs()
    statistic = mean.abs() / torch.where(flat, 1.0, error)
    p = torch.as_tensor(2 * t.sf(statistic.numpy(), (there - 1).clamp(min=1).numpy()))
    p = torch.where(flat, torch.where(mean == 0, 1.0, 2.0 ** (1 - there.double())), p)
    return torch.where(there < 2, torch.nan, p)


# -- Means over windows -----------------------------------------------------------------------------------------------


def _measure_rows(name: str, length: int, sides: _Sides, settings: Settings) -> list[pl.DataFrame]:
    a, b = (torch.stack([record[f"{name}/value"] for record in side]) for side in sides)
    # A window counts where both sides have a number.
    absent = a.isnan() | b.isnan()
    heads = [x.masked_fill(absent, torch.nan) for x in (a, b)]
    means = [x.flatten(1, 2).nanmean(1) for x in heads]
    return [_mean_rows(name, length, x[0], x[1], settings, of_heads=x is heads) for x in (heads, means)]


def _mean_rows(name: str, length: int, a: Tensor, b: Tensor, settings: Settings, *, of_heads: bool) -> pl.DataFrame:
    """Rows from numbers (window, layer, head[, N]), or without layer and head for all heads together."""
    difference = b - a
    ends = measures.bootstrap_interval(
        difference, level=settings.level, resamples=settings.resamples, seed=settings.seed
    )
    values = [x.nanmean(0) for x in (a, b, difference)]
    return _columns(name, length, values, ends, _paired_p(difference), settings, of_heads=of_heads)


def _columns(
    name: str, length: int | None, values: Sequence[Tensor], ends: Sequence[Tensor], p: Tensor, settings: Settings, *,
    of_heads: bool,
) -> pl.DataFrame:  # fmt: skip
    """Columns from first, second and difference, (layer, head[, N]), or without layer and head for all together."""
    first, second, mean = values
    places = np.indices(mean.shape).reshape(mean.dim(), mean.numel())
    nothing = np.full(mean.numel(), np.nan)
    layer, head, sizes = (*places[:2], places[2:]) if of_heads else (nothing, nothing, places)
    columns: dict[str, Any] = {
        "layer": layer, "head": head, "length": nothing if length is None else np.full(mean.numel(), length),
        "n": np.asarray(settings.sizes)[sizes[0]] if len(sizes) else nothing,
        "first": first, "second": second, "difference": mean, "low": ends[0], "high": ends[1],
        "effect": mean / _spread(first, second) if of_heads else mean / first.abs(), "p_value": p,
    }  # fmt: skip
    flat = {key: np.asarray(x, dtype=np.float64).reshape(-1) for key, x in columns.items()}
    return pl.DataFrame(flat).filter(pl.col("difference").is_not_nan()).with_columns(measure=pl.lit(name))


def _spread(first: Tensor, second: Tensor) -> Tensor:
    """Standard deviation of a measure over all heads of both sides, for each N: the unit of an effect."""
    both = torch.cat([first, second], 1).flatten(0, 1)
    spread = (both - both.nanmean(0)).square().nanmean(0).sqrt()
    return torch.where(spread > 0, spread, torch.nan)


# -- Decay exponents and critical N -----------------------------------------------------------------------------------


def fitted_rows(
    first: Records, second: Records, names: Sequence[str], settings: Settings
) -> tuple[list[pl.DataFrame], list[str]]:
    """Rows for the table of differences, and a sentence for each number that cannot be compared."""
    lengths = [length for length in first if length in second]
    every = [record for n in lengths for record in first[n]], [record for n in lengths for record in second[n]]
    rows, left_out = _decay_rows(every, settings)
    for length in lengths:
        row = _critical_row(length, (first[length], second[length]), names, settings)
        if isinstance(row, str):
            left_out.append(f"Critical N at {length:,} tokens is not compared: {row}.")
        else:
            rows.append(row)
    return rows, left_out


def _decay_rows(sides: _Sides, settings: Settings) -> tuple[list[pl.DataFrame], list[str]]:
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
    windows, ones = len(absent), partial(torch.ones, dtype=torch.float64)

    def exponents(counts: Tensor) -> list[Tensor]:
        return [measures.weighted_decay_exponents(side, counts) for side in sums]

    once = exponents(ones(1, windows))
    if bool((once[1] - once[0]).isnan().all()):
        why = "all queries see the same number of keys; measure several lengths (--lengths 64,128,256)"
        return [], [f"The decay exponent is not compared: {why}."]
    drawn = exponents(measures.resampled_counts(windows, settings.resamples, settings.seed))
    # With one window left out, the slope of a head may be undefined: the mean is then over the other heads.
    spared = exponents(ones(windows, windows) - torch.eye(windows, dtype=torch.float64))
    rows = []
    for of_heads in (True, False):
        if not of_heads:
            once, drawn, spared = ([x.flatten(1).nanmean(1) for x in several] for several in (once, drawn, spared))
        first, second = (x[0] for x in once)
        difference = second - first
        again = (drawn[1] - drawn[0]).reshape(len(drawn[0]), -1)
        ends = [end.view(difference.shape) for end in measures.interval_ends(again, settings.level, windows)]
        if windows < 2:
            ends = [torch.full_like(difference, torch.nan)] * 2
        pseudo = windows * difference - (windows - 1) * (spared[1] - spared[0])
        values = (first, second, difference)
        rows.append(_columns(DECAY, None, values, ends, _paired_p(pseudo), settings, of_heads=of_heads))
    return rows, []


def _critical_row(length: int, sides: _Sides, names: Sequence[str], settings: Settings) -> pl.DataFrame | str:
    """One row of all heads at one length, or why there is none."""
    if any(key not in record for key in _DISTANCE for side in sides for record in side):
        return "these runs did not keep the distances that it tests"
    means = [[torch.stack([record[key] for record in side]) for key in _DISTANCE] for side in sides]
    measured = [(~x.nanmean(0).isnan()).flatten(0, 1).any(0) for side in means for x in side]  # at every size
    usable = torch.stack(measured).all(0).nonzero()[:, 0].tolist()
    grid = [settings.sizes[i] for i in usable]
    if not grid:
        return "no set size leaves keys out"
    heads = int((~means[0][0][..., usable].nanmean(0).isnan()).any(-1).sum())
    if 2 / math.comb(2 * heads, heads) > CRITICAL_LEVEL:  # the least p value of two samples of so many heads
        return f"with {heads} heads the test cannot distinguish anything from chance"

    def tested(side: Sequence[Any]) -> float:
        """Critical N of means (layer, head, N) of the distance and its control; NaN if every N is rejected."""
        true, control = (x[..., usable].reshape(-1, len(usable)).T.contiguous() for x in side)
        value = measures.critical_n(true, control, grid, (CRITICAL_LEVEL,)).critical[CRITICAL_LEVEL]
        return math.nan if value is None else float(value)

    values = [tested([x.nanmean(0) for x in side]) for side in means]
    if any(map(math.isnan, values)):
        which = (name for name, value in zip((names[0], names[-1]), values, strict=True) if math.isnan(value))
        return f"on {' and '.join(which)} every selection up to N = {grid[-1]} differs from random"
    # A tenth of the resamples, as in the table; no interval if a resample has no critical N.
    count = settings.resamples // 10 or 1
    drawn = [zip(*(measures.resampled_means(x, count, settings.seed) for x in side), strict=True) for side in means]
    differences = [tested(second) - tested(first) for first, second in zip(*drawn, strict=True)]
    ends: Sequence[Any] = (math.nan, math.nan)
    if len(sides[0]) > 1 and not any(map(math.isnan, differences)):
        again = torch.tensor(differences, dtype=torch.float64)[:, None]
        ends = measures.interval_ends(again, settings.level, len(sides[0]))
    first, second, difference, low, high, p = torch.tensor(
        [*values, values[1] - values[0], *map(float, ends), math.nan], dtype=torch.float64
    )
    return _columns(CRITICAL, length, (first, second, difference), (low, high), p, settings, of_heads=False)
