"""The table of a run from the records of its windows: means over windows, intervals, and tests over all heads.

Critical N has several readings. arXiv 2508.17821 compares the distance of the selected tokens with an expected one:
that can be the mean over random sets, drawn here, or the formula of its Theorem 1(2) without epsilon. The
Kolmogorov-Smirnov test can be run on the heads' means over queries, per query on the heads' distances there, or on all
queries of all heads at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from .. import measures
from ..measures import Reading, State, critical_of_units
from ..results import SCHEMA
from .inputs import Settings

LEVELS = (0.01, 0.05)  # of the test, in the text and in the pseudocode of the paper
EXPECTED: Mapping[str, str] = {  # with its key in the records of windows
    "random sets": "distance/control",
    "formula": "expected_distance_low/value",
}
TESTS = ("head means", "each query", "all queries")
DEFAULT = "random sets", "head means"
READINGS = tuple(itertools.product(EXPECTED, TESTS))


def critical_name(level: float, expected: str, test: str) -> str:
    """The measure in the table of a run."""
    return f"critical_n@{level:g}, {expected}, {test}"


def rejecting_name(level: float, expected: str, test: str) -> str:
    return f"rejecting@{level:g}, {expected}, {test}"


def units_key(expected: str, test: str, level: float) -> str:
    """Name in the record of a window: critical N of its tests, (test,), +inf if every N is rejected."""
    return f"critical/{expected}/{test}@{level:g}"


class QueryDistances:
    """The distances of single queries in one window, kept until all layers are read: a test needs all heads."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._layers: list[Tensor] = []
        self._positions = torch.tensor([], dtype=torch.long)

    def add(self, distance: Reading, formula: Reading) -> None:
        """A block of queries of one layer; NaN where a set leaves no key out."""
        assert distance.control is not None
        parts = [x.float() for x in (distance.value, distance.control, formula.value)]
        self._blocks.append(torch.where(distance.defined, torch.stack(parts), torch.nan).cpu())

    def end_layer(self, positions: Tensor) -> None:
        if self._blocks:
            self._layers.append(torch.cat(self._blocks, 2))
            self._blocks, self._positions = [], positions

    def tests(self, length: int, grid: Sequence[int]) -> dict[str, Tensor]:
        """Critical N per query, and of all queries at once, by `units_key`; empty if nothing was added.

        Sets of at most half the window. Single queries come from its second half, where all see enough keys: else
        they would be tested at different sizes.
        """
        if not self._layers:
            return {}
        usable = [i for i, n in enumerate(grid) if 2 * n <= length]
        sizes = [grid[i] for i in usable]
        distances = torch.cat(self._layers, 1)[..., usable]  # (kind, head, query, N)
        late = distances[:, :, self._positions >= length // 2]
        units = {"each query": late.permute(0, 2, 3, 1), "all queries": distances.flatten(1, 2).mT[:, None]}
        critical = {}
        for (place, expected), test, level in itertools.product(enumerate(EXPECTED, 1), TESTS[1:], LEVELS):
            true, other = units[test][0], units[test][place]
            key = units_key(expected, test, level)
            none = torch.empty(0, dtype=torch.float64)
            critical[key] = critical_of_units(true, other, sizes, level) if sizes and len(true) else none
        return critical


def over_units(critical: Tensor) -> tuple[float | None, float | None]:
    """The median critical N (None if more than half of the tests reject at every N), and the share of such tests."""
    tested = critical[~critical.isnan()].sort().values
    if not len(tested):
        return None, None
    median = float(tested[(len(tested) - 1) // 2])
    return None if median == torch.inf else median, float((tested == torch.inf).double().mean())


Record = dict[str, Tensor]  # "measure/part": (layer, head) or (layer, head, N), NaN for none
Numbers = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]  # value, low, high, limit, control
_DECAY = "decay"
_DISTANCE = "distance/value"
_PARTS = ("value", "limit", "control")
_NUMBERS = ("value", "low", "high", "limit", "control")
_TESTED = {name: SCHEMA[name] for name in ("measure", "n", "value", "low", "high")}  # columns of tests
_PLACES = {info.name: place for place, info in enumerate(measures.list_measures())}


def layer_record(state: State) -> Record:
    """The means of one layer in one window, (head,) or (head, N), and the sums for a slope over lengths."""
    record = {key: x for key, x in state.items() if key.startswith(f"{_DECAY}/")}
    for name, summary in measures.compute(state).items():
        for part in _PARTS:
            x = getattr(summary, part)
            if x is not None:
                record[f"{name}/{part}"] = x
    return record


def window_record(of_layers: Mapping[int, Record], layers: int) -> Record:
    """The means of one window, all layers stacked; a layer with fewer heads is padded with NaN."""
    keys = dict.fromkeys(key for record in of_layers.values() for key in record)
    return {
        key: _stacked({layer: record[key] for layer, record in of_layers.items() if key in record}, layers)
        for key in keys
    }


def _stacked(of_layers: Mapping[int, Tensor], layers: int) -> Tensor:
    shapes = {x.shape for x in of_layers.values()}
    if len(shapes) == 1 and list(of_layers) == list(range(layers)):
        # Layers of one model may lie on different devices; tables are made on the CPU.
        return torch.stack([x.cpu() for x in of_layers.values()]).double()
    heads = max(shape[0] for shape in shapes)
    stacked = torch.full((layers, heads, *next(iter(of_layers.values())).shape[1:]), torch.nan, dtype=torch.float64)
    for layer, x in of_layers.items():
        stacked[layer, : len(x)] = x
    return stacked


def table(model: str, records: Mapping[int, Sequence[Record]], settings: Settings) -> pl.DataFrame:
    """All rows of a run, from the records of the windows of every length."""
    parts = [
        part
        for length, group in records.items()
        for name in measured_names(group)
        for part in _rows_of_measure(name, length, group, settings)
    ]
    parts += [_critical_rows(length, group, settings) for length, group in records.items()]
    parts += [_reading_rows(length, group, settings) for length, group in records.items() if settings.readings]
    parts += _decay_rows([record for group in records.values() for record in group], settings)
    joined = pl.concat([pl.DataFrame(schema=SCHEMA), *parts], how="diagonal_relaxed").with_columns(
        pl.col(*_NUMBERS).fill_nan(None), model=pl.lit(model)
    )
    return joined.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())


def measured_names(records: Sequence[Record]) -> list[str]:
    """Measures with a value in all of these records, in the order of the registry, which files do not keep."""
    keys = [key for key in records[0] if key.endswith("/value") and all(key in record for record in records)]
    names = [key.removesuffix("/value") for key in keys]
    return sorted(names, key=lambda name: (_PLACES[name.partition("@")[0]], name))


def _rows_of_measure(name: str, length: int, records: Sequence[Record], settings: Settings) -> list[pl.DataFrame]:
    """A row per head, and one for all heads together, whose interval resamples windows with all their heads."""
    parts = {part: _over_windows(records, f"{name}/{part}") for part in _PARTS if f"{name}/{part}" in records[0]}
    rows = [_rows(name, length, _joined_windows(name, parts, settings), settings.sizes)]
    if not name.partition("@")[0].endswith("_p95"):  # a mean of quantiles is not a quantile
        of_all = {part: _over(1, name, x.flatten(1, 2), parts["value"].flatten(1, 2)) for part, x in parts.items()}
        rows.append(_rows(name, length, _joined_windows(name, of_all, settings), settings.sizes, of_heads=False))
    return rows


def _over_windows(records: Sequence[Record], key: str) -> Tensor:
    return torch.stack([record[key] for record in records])


def _over(dim: int, name: str, x: Tensor, values: Tensor) -> Tensor:
    """Mean over windows or heads, or maximum of a measure that is one; NaN where a value lacks this number."""
    joined = _largest(x, dim) if _is_largest(name) else x.nanmean(dim)
    return torch.where((x.isnan() & ~values.isnan()).any(dim), torch.nan, joined)


def _joined_windows(name: str, parts: Mapping[str, Tensor], settings: Settings) -> Numbers:
    """Means over windows with their intervals, from numbers (window, ...)."""
    values = parts["value"]
    low, high = measures.bootstrap_interval(
        values, level=settings.level, resamples=settings.resamples, seed=settings.seed,
        statistic="max" if _is_largest(name) else "mean",
    )  # fmt: skip
    control = parts["control"].nanmean(0) if "control" in parts else None
    limit = _over(0, name, parts["limit"], values) if "limit" in parts else None
    return _over(0, name, values, values), low, high, limit, control


def _is_largest(name: str) -> bool:
    return name.partition("@")[0].endswith("_max")


def _largest(values: Tensor, dim: int) -> Tensor:
    """Maximum; NaN only where all are."""
    largest = values.nan_to_num(nan=-torch.inf).amax(dim)
    return torch.where(largest == -torch.inf, torch.nan, largest)


def _rows(name: str, length: int | None, numbers: Numbers, grid: Sequence[int], of_heads: bool = True) -> pl.DataFrame:
    """Rows for (layer, head) or (layer, head, N) numbers, without layer and head unless they are `of_heads`."""
    value = numbers[0]
    places = np.indices(value.shape).reshape(value.dim(), value.numel())
    columns = dict(zip(("layer", "head", "n") if of_heads else ("n",), places, strict=False))
    if "n" in columns:
        columns["n"] = np.asarray(grid)[columns["n"]]
    columns |= {key: x.reshape(-1).numpy() for key, x in zip(_NUMBERS, numbers, strict=True) if x is not None}
    named = {"measure": pl.lit(name), "length": pl.lit(length, pl.Int32)}
    return pl.DataFrame(columns).filter(pl.col("value").is_not_nan()).with_columns(**named)


def _tested(length: int, rows: Sequence[Sequence[Any]]) -> pl.DataFrame:
    """Rows of `_TESTED` for all heads together."""
    return pl.DataFrame(rows, _TESTED, orient="row").with_columns(length=pl.lit(length, pl.Int32))


def _critical_rows(length: int, records: Sequence[Record], settings: Settings) -> pl.DataFrame:
    """The test of the heads' distances against those of random sets for every N, and where it first fails to reject."""
    means = {part: _over_windows(records, f"distance/{part}") for part in ("value", "control")}
    usable = [i for i in range(len(settings.sizes)) if not bool(means["value"][..., i].nanmean(0).isnan().all())]
    grid = [settings.sizes[i] for i in usable]
    if not grid:
        return _tested(length, [])
    samples = {part: _by_size(x.nanmean(0)[..., usable]) for part, x in means.items()}
    test = measures.critical_n(samples["value"], samples["control"], grid, LEVELS)
    # A tenth of the resamples: each one repeats the tests of all N.
    resamples = (measures.resampled_means(means[part], settings.resamples // 10 or 1, settings.seed) for part in means)
    again = [
        measures.critical_n(_by_size(value[..., usable]), _by_size(control[..., usable]), grid, LEVELS)
        for value, control in zip(*resamples, strict=True)
    ]
    rows: list[tuple[str, int | None, float | None, list[float | None]]] = []
    for i, size in enumerate(grid):
        rows.append(("ks_statistic", size, test.statistic[i], [one.statistic[i] for one in again]))
        rows.append(("ks_p_value", size, test.p_value[i], [one.p_value[i] for one in again]))
    rows += [
        (f"critical_n@{level:g}", None, test.critical[level], [one.critical[level] for one in again])
        for level in LEVELS
    ]
    return _tested(length, [(*row, *_ends(resampled, settings, len(records))) for *row, resampled in rows])


def _reading_rows(length: int, records: Sequence[Record], settings: Settings) -> pl.DataFrame:
    """Critical N under every reading: the median over tests, and the share of tests that reject at every N.

    Sets of at most half the keys. Head means have a single test.
    """
    usable = [i for i, n in enumerate(settings.sizes) if 2 * n <= length]
    grid = [settings.sizes[i] for i in usable]
    rows = []
    for (expected, key), level in itertools.product(EXPECTED.items(), LEVELS):
        units = {
            test: torch.cat([record[units_key(expected, test, level)] for record in records]) for test in TESTS[1:]
        }
        true, other = (_by_size(_over_windows(records, name).nanmean(0)[..., usable]) for name in (_DISTANCE, key))
        critical = measures.critical_n(true, other, grid, (level,)).critical[level] if grid else math.nan
        units[TESTS[0]] = torch.tensor([math.inf if critical is None else critical], dtype=torch.float64)
        for test in TESTS:
            median, share = over_units(units[test])
            rows.append((critical_name(level, expected, test), None, median, None, None))
            rows.append((rejecting_name(level, expected, test), None, share, None, None))
    return _tested(length, rows)


def _by_size(means: Tensor) -> Tensor:
    """(N, heads of all layers)."""
    flat = means.reshape(-1, means.shape[-1])
    return flat.T.contiguous()


def _ends(values: Sequence[float | None], settings: Settings, windows: int) -> tuple[float | None, float | None]:
    """The interval over the resamples with a number; None if one has no critical N, or for a single window."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    if windows < 2 or not known or any(value is None for value in values):
        return None, None
    low, high = measures.interval_ends(torch.tensor(known, dtype=torch.float64)[:, None], settings.level, windows)
    return float(low), float(high)


def _decay_rows(records: Sequence[Record], settings: Settings) -> list[pl.DataFrame]:
    """The slope over all windows of all lengths: per head, and their mean."""
    keys = [key for key in records[0] if key.startswith(f"{_DECAY}/")]
    sums = {key.removeprefix(f"{_DECAY}/"): _over_windows(records, key) for key in keys}
    options: dict[str, Any] = {"level": settings.level, "resamples": settings.resamples, "seed": settings.seed}
    per_head, mean = measures.decay_exponent(sums, **options), measures.mean_decay_exponent(sums, **options)
    return [
        # The control is the slope of a uniform head, 1.
        _rows("decay_exponent", None, (*slopes, None, torch.ones_like(slopes[0])), settings.sizes, of_heads)
        for slopes, of_heads in ((per_head, True), (mean, False))
    ]
