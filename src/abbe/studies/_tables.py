"""From the sums of single windows to the table of a run: means over windows, intervals, and what needs all heads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from ..measures import State, bootstrap_interval, compute, critical_n, decay_exponent, list_measures, resampled_means
from ..results import SCHEMA
from ._settings import Settings

Record = dict[str, Tensor]  # "measure/part": (layer, head) or (layer, head, N), NaN where there is nothing
LEVELS = (0.01, 0.05)  # of the Kolmogorov-Smirnov test, in the text and in the pseudocode of arXiv 2508.17821
_DECAY = "decay"
_PARTS = ("value", "limit", "control")
_PLACES = {info.name: place for place, info in enumerate(list_measures())}


def layer_record(state: State) -> Record:
    """The means of one layer in one window, (head,) or (head, N), and the sums that a slope over lengths needs."""
    found = {key: x for key, x in state.items() if key.startswith(f"{_DECAY}/")}
    for name, summary in compute(state).items():
        for part in _PARTS:
            x = getattr(summary, part)
            if x is not None:
                found[f"{name}/{part}"] = x
    return found


def window_record(of_layers: Mapping[int, Record], layers: int) -> Record:
    """The means of one window, all layers stacked; a layer with fewer heads than others is filled up with NaN."""
    keys = dict.fromkeys(key for record in of_layers.values() for key in record)
    return {
        key: _stacked({layer: record[key] for layer, record in of_layers.items() if key in record}, layers)
        for key in keys
    }


def _stacked(of_layers: Mapping[int, Tensor], layers: int) -> Tensor:
    heads = max(len(x) for x in of_layers.values())
    stacked = torch.full((layers, heads, *next(iter(of_layers.values())).shape[1:]), torch.nan, dtype=torch.float64)
    for layer, x in of_layers.items():
        stacked[layer, : len(x)] = x
    return stacked


def table(model: str, records: Mapping[int, Sequence[Record]], settings: Settings) -> pl.DataFrame:
    """All rows of a run, from the records of the windows of every length."""
    parts = [_rows_of_length(length, group, settings) for length, group in records.items()]
    parts += [_critical_rows(length, group, settings) for length, group in records.items()]
    parts.append(_decay_rows([record for group in records.values() for record in group], settings))
    whole = pl.concat([part for part in parts if len(part)])
    return whole.with_columns(model=pl.lit(model)).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())


def _rows_of_length(length: int, records: Sequence[Record], settings: Settings) -> pl.DataFrame:
    found = [key.removesuffix("/value") for key in records[0] if key.endswith("/value")]
    names = sorted(found, key=lambda name: (_PLACES[name.partition("@")[0]], name))
    return pl.concat([_rows_of_measure(name, length, records, settings) for name in names])


def _rows_of_measure(name: str, length: int, records: Sequence[Record], settings: Settings) -> pl.DataFrame:
    """A row for every head, and one for all heads together, whose interval takes windows with all their heads."""
    parts = {part: _over_windows(records, f"{name}/{part}") for part in _PARTS if f"{name}/{part}" in records[0]}
    of_all = {part: _over_heads(name, x, parts["value"]) for part, x in parts.items()}
    return pl.concat(
        [
            _frame(name, length, *_joined_windows(name, parts, settings), settings.grid),
            _frame(name, length, *_joined_windows(name, of_all, settings), settings.grid, of_heads=False),
        ]
    )


def _over_windows(records: Sequence[Record], key: str) -> Tensor:
    return torch.stack([record[key] for record in records])


def _over_heads(name: str, x: Tensor, values: Tensor) -> Tensor:
    """(window, layer, head, ...) -> (window, ...); NaN where a head has a value without this number."""
    joined = _largest(x.flatten(1, 2), 1) if _is_largest(name) else x.flatten(1, 2).nanmean(1)
    return torch.where((x.isnan() & ~values.isnan()).flatten(1, 2).any(1), torch.nan, joined)


def _joined_windows(
    name: str, parts: Mapping[str, Tensor], settings: Settings
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Value, ends of its interval, limit and control, from numbers (window, ...)."""
    values = parts["value"]
    low, high = bootstrap_interval(
        values,
        level=settings.level,
        resamples=settings.resamples,
        seed=settings.seed,
        statistic="max" if _is_largest(name) else "mean",
    )
    value = _largest(values, 0) if _is_largest(name) else values.nanmean(0)
    control = parts["control"].nanmean(0) if "control" in parts else None
    return value, low, high, _limit(name, values, parts.get("limit")), control


def _is_largest(name: str) -> bool:
    return name.partition("@")[0].endswith("_max")


def _largest(values: Tensor, dim: int) -> Tensor:
    """Maximum; NaN only where all are."""
    largest = values.nan_to_num(nan=-torch.inf).amax(dim)
    return torch.where(largest == -torch.inf, torch.nan, largest)


def _limit(name: str, values: Tensor, limits: Tensor | None) -> Tensor | None:
    """That of the windows' values; none where a window has a value without a limit."""
    if limits is None:
        return None
    unlimited = (limits.isnan() & ~values.isnan()).any(0)
    joined = _largest(limits, 0) if _is_largest(name) else limits.nanmean(0)
    return torch.where(unlimited, torch.nan, joined)


def _frame(
    name: str,
    length: int | None,
    value: Tensor,
    low: Tensor,
    high: Tensor,
    limit: Tensor | None,
    control: Tensor | None,
    grid: Sequence[int],
    of_heads: bool = True,
) -> pl.DataFrame:
    """Rows for (layer, head) or (layer, head, N) numbers, without the first two if they are not of single heads."""
    places = np.indices(value.shape).reshape(value.dim(), value.numel())
    layers, heads, sizes = (*places[:2], places[2:]) if of_heads else (None, None, places)
    columns: dict[str, Any] = {"layer": layers, "head": heads}
    columns["length"] = [length] * value.numel()
    columns["n"] = np.asarray(grid)[sizes[0]] if len(sizes) else None
    columns["measure"] = [name] * value.numel()
    for key, x in (("value", value), ("low", low), ("high", high), ("limit", limit), ("control", control)):
        columns[key] = None if x is None else x.reshape(-1).numpy()
    filled = {key: [None] * value.numel() if x is None else x for key, x in columns.items()}
    return _typed(filled).filter(pl.col("value").is_not_null())


def _typed(columns: Mapping[str, Any]) -> pl.DataFrame:
    kinds = {name: kind for name, kind in SCHEMA.items() if name != "model"}
    made = pl.DataFrame({name: pl.Series(name, columns[name]).cast(kind) for name, kind in kinds.items()})
    return made.with_columns(pl.col(name).fill_nan(None) for name, kind in kinds.items() if kind == pl.Float64)


def _critical_rows(length: int, records: Sequence[Record], settings: Settings) -> pl.DataFrame:
    """The test that tells the heads' distances from those of random sets, for every N, and where it first fails."""
    means = {part: _over_windows(records, f"distance/{part}") for part in ("value", "control")}
    usable = [i for i in range(len(settings.grid)) if not bool(means["value"][..., i].nanmean(0).isnan().all())]
    grid = [settings.grid[i] for i in usable]
    if not grid:
        return _typed({name: [] for name in SCHEMA})
    samples = {part: _by_size(x.nanmean(0)[..., usable]) for part, x in means.items()}
    found = critical_n(samples["value"], samples["control"], grid, LEVELS)
    again = [
        critical_n(_by_size(value[..., usable]), _by_size(control[..., usable]), grid, LEVELS)
        for value, control in zip(
            *(resampled_means(means[part], settings.resamples // 10 or 1, settings.seed) for part in means), strict=True
        )
    ]
    several = len(records) > 1
    rows: list[tuple[str, int | None, float | None, list[float | None]]] = []
    for i, size in enumerate(grid):
        rows.append(("ks_statistic", size, found.statistic[i], [one.statistic[i] for one in again]))
        rows.append(("ks_p_value", size, found.p_value[i], [one.p_value[i] for one in again]))
    rows += [
        (f"critical_n@{level:g}", None, found.critical[level], [one.critical[level] for one in again])
        for level in LEVELS
    ]
    columns: dict[str, list[Any]] = {name: [None] * len(rows) for name in SCHEMA}
    columns |= {"length": [length] * len(rows), "n": [n for _, n, _, _ in rows], "measure": [row[0] for row in rows]}
    columns["value"] = [value for _, _, value, _ in rows]
    columns["low"], columns["high"] = ([_quantile(row[3], q, settings, several) for row in rows] for q in (0, 1))
    return _typed(columns)


def _by_size(means: Tensor) -> Tensor:
    """(N, heads of all layers)."""
    flat = means.reshape(-1, means.shape[-1])
    return flat.T.contiguous()


def _quantile(values: Sequence[float | None], side: int, settings: Settings, several: bool) -> float | None:
    """End of the interval over the resamples with a number; null where one has no critical N, or for one window."""
    if not several or any(value is None for value in values):
        return None
    values = [value for value in values if value is not None and not math.isnan(value)]
    if not values:
        return None
    tail = (1 - settings.level) / 2
    return float(np.quantile(np.asarray(values, dtype=float), 1 - tail if side else tail))


def _decay_rows(records: Sequence[Record], settings: Settings) -> pl.DataFrame:
    """The slope over all windows of all lengths."""
    keys = [key for key in records[0] if key.startswith(f"{_DECAY}/")]
    sums = {key.removeprefix(f"{_DECAY}/"): _over_windows(records, key) for key in keys}
    value, low, high = decay_exponent(sums, level=settings.level, resamples=settings.resamples, seed=settings.seed)
    uniform = torch.ones_like(value)
    return _frame("decay_exponent", None, value, low, high, None, uniform, settings.grid)
