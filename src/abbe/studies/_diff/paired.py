"""Two sides measured on the same windows: the difference of every measure of every head, with a paired interval.

What is special: text differs more from window to window than models differ from each other, so each window is compared
with itself. p values are those of Student's t over the windows' differences; since a table has thousands of them, a
change is decided by its q value (Benjamini and Hochberg) within the family of all heads and measures: a share of at
most 1 - level of the reported changes is expected to be chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from ...measures import bootstrap_interval, list_measures
from ...runs.settings import Settings
from ...runs.tables import Record

SCHEMA: dict[str, Any] = {
    "layer": pl.Int32, "head": pl.Int32, "length": pl.Int32, "n": pl.Int32, "measure": pl.String,
    "first": pl.Float64, "second": pl.Float64, "difference": pl.Float64, "low": pl.Float64, "high": pl.Float64,
    "effect": pl.Float64, "p_value": pl.Float64, "q_value": pl.Float64, "changed": pl.Boolean,
}  # fmt: skip
# Smaller differences are rounding, however regular they are: relative to the larger value, and to the largest value of
# the measure, since some values are nothing but rounding (the imbalance within a set of one).
ROUNDING, ROUNDING_OF_LARGEST = 1e-5, 1e-6
_EQUAL = 1e-12  # relative: differences whose spread is rounding of float64
_VALUE = "/value"
_PLACES = {info.name: place for place, info in enumerate(list_measures())}
LOSS = "loss"  # of the next token; in the rows of all heads together
Records = Mapping[int, Sequence[Record]]  # by length, in the order of the windows
Losses = Mapping[int, Tensor]  # by length: one per window
Columns = dict[str, np.ndarray]


def difference_table(
    first: Records, second: Records, settings: Settings, losses: Sequence[Losses] = (), fitted: Sequence[Columns] = ()
) -> pl.DataFrame:
    """All measures of all heads, the largest changes first; rows of all heads together have null as layer and head.

    `losses` holds both sides, if both predict the next token; `fitted` are rows of numbers that need all windows.
    """
    parts = [
        part
        for length, records in first.items()
        for name in _measures(records, second[length])
        for part in _rows_of(name, length, records, second[length], settings)
    ]
    if losses:
        first_losses, second_losses = losses
        parts += [_rows(LOSS, n, x, second_losses[n], settings, of_heads=False) for n, x in first_losses.items()]
    parts += fitted
    if not parts:
        return pl.DataFrame(schema=SCHEMA)
    joined: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    single = ~np.isnan(joined["layer"])
    joined["q_value"] = np.where(single, q_values(joined["p_value"], single), q_values(joined["p_value"], ~single))
    # Critical N has an interval and no p value.
    alone = np.isnan(joined["p_value"]) & ((joined["low"] > 0) | (joined["high"] < 0))
    joined["changed"] = ((joined["q_value"] <= 1 - settings.level) | alone) & _beyond_rounding(joined)
    order = np.lexsort((-np.abs(np.nan_to_num(joined["effect"])), ~joined["changed"], ~single))
    return pl.DataFrame({name: _series(name, kind, joined[name][order]) for name, kind in SCHEMA.items()})


def _beyond_rounding(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    larger = np.maximum(np.abs(columns["first"]), np.abs(columns["second"]))
    _, kinds = np.unique(columns["measure"].astype(str), return_inverse=True)
    largest = np.zeros(kinds.max() + 1)
    np.maximum.at(largest, kinds, larger)
    size = np.abs(columns["difference"])
    beyond: np.ndarray = (size > ROUNDING * larger) & (size > ROUNDING_OF_LARGEST * largest[kinds])
    return beyond


def q_values(p: np.ndarray, family: np.ndarray) -> np.ndarray:
    """Benjamini and Hochberg's, within the family; NaN elsewhere and where there is no p value."""
    from scipy.stats import false_discovery_control  # takes long to import

    q = np.full(len(p), np.nan)
    there = family & ~np.isnan(p)
    if there.any():
        q[there] = false_discovery_control(p[there])
    return q


def paired_p(differences: Tensor) -> Tensor:
    """(window, ...) -> (...): two-sided, of the mean over windows being 0; 1 where all are 0, NaN for one window.

    Equal differences have no spread, so t would be infinite even for two windows: the sign test gives 2^(1 - windows).
    """
    from scipy.stats import t

    there = (~differences.isnan()).sum(0)
    mean = differences.nanmean(0)
    spread = ((differences - mean) ** 2).nansum(0) / (there - 1).clamp(min=1)
    error = (spread / there.clamp(min=1)).sqrt()
    flat = error <= _EQUAL * mean.abs()
    statistic = mean.abs() / torch.where(flat, 1.0, error)
    p = torch.as_tensor(2 * t.sf(statistic.numpy(), (there - 1).clamp(min=1).numpy()))
    p = torch.where(flat, torch.where(mean == 0, 1.0, 2.0 ** (1 - there.double())), p)
    return torch.where(there < 2, torch.nan, p)


def _measures(first: Sequence[Record], second: Sequence[Record]) -> list[str]:
    """In the order of the registry, which records from files do not keep."""
    keys = [key for key in first[0] if key.endswith(_VALUE) and all(key in record for record in (*first, *second))]
    names = [key.removesuffix(_VALUE) for key in keys]
    return sorted(names, key=lambda name: (_PLACES[name.partition("@")[0]], name))


def _rows_of(
    name: str, length: int, first: Sequence[Record], second: Sequence[Record], settings: Settings
) -> list[Columns]:
    a, b = (torch.stack([record[name + _VALUE] for record in side]) for side in (first, second))
    # A window counts where both sides have a number.
    absent = a.isnan() | b.isnan()
    a, b = (x.masked_fill(absent, torch.nan) for x in (a, b))
    first_mean, second_mean = (x.flatten(1, 2).nanmean(1) for x in (a, b))
    return [
        _rows(name, length, a, b, settings, of_heads=True),
        _rows(name, length, first_mean, second_mean, settings, of_heads=False),
    ]


def _rows(name: str, length: int, a: Tensor, b: Tensor, settings: Settings, *, of_heads: bool) -> Columns:
    """From numbers (window, layer, head) or (window, layer, head, N); without layer and head for all heads together."""
    difference = b - a
    ends = bootstrap_interval(difference, level=settings.level, resamples=settings.resamples, seed=settings.seed)
    first, second, mean = (x.nanmean(0) for x in (a, b, difference))
    return columns_of(name, length, first, second, mean, ends, paired_p(difference), settings, of_heads=of_heads)


def columns_of(
    name: str, length: int | None, first: Tensor, second: Tensor, mean: Tensor, ends: tuple[Tensor, Tensor], p: Tensor,
    settings: Settings, *, of_heads: bool,
) -> Columns:  # fmt: skip
    """From numbers (layer, head) or (layer, head, N); without layer and head for all heads together."""
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
    known = ~np.isnan(flat["difference"])
    return {key: x[known] for key, x in flat.items()} | {"measure": np.full(known.sum(), name, dtype=object)}


def _spread(first: Tensor, second: Tensor) -> Tensor:
    """Standard deviation of a measure over all heads of both sides, for each N: the unit of an effect."""
    both = torch.cat([first, second], 1).flatten(0, 1)
    spread = (both - both.nanmean(0)).square().nanmean(0).sqrt()
    return torch.where(spread > 0, spread, torch.nan)


def _series(name: str, kind: Any, values: np.ndarray) -> pl.Series:
    if kind in (pl.String, pl.Boolean):
        return pl.Series(name, values.tolist(), kind)
    return pl.Series(name, values.astype(np.float64)).fill_nan(None).cast(kind)
