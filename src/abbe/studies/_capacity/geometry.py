"""Separability beside capacity: does the geometry of the selected tokens predict how many a layer needs?

Spearman's rank correlation with a permutation test says so: few layers, many ties, no tables of critical values.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Any

import polars as pl
import torch
from torch import Tensor

from ...results import Run
from ...runs.lookup import Lookup
from .result import CORRELATION_SCHEMA
from .settings import CapacitySettings

_MEASURE = "separability"
EXACT_UP_TO = 8  # 40,320 orders
PERMUTATIONS = 10_000  # drawn of more: p-values down to 1e-4
_TIE = 1e-12  # correlations of the same ranks in another order of summation differ by less: they count as equal
Cell = tuple[int, str]  # length and way


def shown_size(capacity: float, length: int) -> int:
    """The size of the sets whose separability is shown beside a capacity: N itself, within 2 and L/2.

    One selected token is always separable, and beyond half of the keys few queries have as many left to compare with.
    """
    return max(2, min(math.ceil(capacity), length // 2))


def common_sizes(rows: Sequence[Mapping[str, Any]], settings: CapacitySettings) -> dict[Cell, int]:
    """One size for all layers of a length and way: that of the whole model at the smallest tau."""
    return {
        (row["length"], row["way"]): shown_size(row["capacity"], row["length"])
        for row in rows
        if row["layer"] is None and row["tau"] == settings.taus[0]
    }


def sizes_for(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """All sizes in use, in rising order: those of the whole model; layers share some of them."""
    return sorted({shown_size(row["capacity"], row["length"]) for row in rows if row["layer"] is None})


def with_separability(
    rows: Sequence[Mapping[str, Any]], run: Run, layer_numbers: Sequence[Container[int]], common: Mapping[Cell, int]
) -> list[dict[str, Any]]:
    """The rows with separability added. `layer_numbers`: those of the run, by layer of the model."""
    table = Lookup(run)
    completed = []
    for row in rows:
        if row["layer"] is None:
            size = shown_size(row["capacity"], row["length"])
            separability = _of_model(table, row["length"], size)
        else:
            size = common[row["length"], row["way"]]
            separability = _of_layer(table, row["length"], size, layer_numbers[row["layer"]])
        completed.append({**row, "separability_n": size, **separability})
    return completed


def _of_model(table: Lookup, length: int, size: int) -> dict[str, float | None]:
    cell = table.overall(_MEASURE, length, size)
    if cell is None:
        return {}
    ends = {"separability_low": cell.low, "separability_high": cell.high}
    return {"separability": cell.value, "control": cell.control} | ends


def _of_layer(table: Lookup, length: int, size: int, layers: Container[int]) -> dict[str, float | None]:
    """The mean over the heads of these layers."""
    cells = [cell for place, cell in table.heads(_MEASURE, length, size).items() if place[0] in layers]
    controls = [cell.control for cell in cells if cell.control is not None]
    return {
        "separability": fmean(cell.value for cell in cells) if cells else None,
        "control": fmean(controls) if controls else None,
    }


def correlation_table(rows: Sequence[Mapping[str, Any]], settings: CapacitySettings) -> pl.DataFrame:
    """Over layers: ranks of capacity against ranks of separability, for every way, length and allowed rise."""
    correlations, cells = [], defaultdict(list)
    for row in rows:
        if row["layer"] is not None:
            cells[row["way"], row["tau"], row["allowed"], row["length"]].append(row)
    for where, some in cells.items():
        separability = [row["separability"] if row["separability"] is not None else math.nan for row in some]
        ranked = rank_correlation([row["capacity"] for row in some], separability, settings.seed)
        size = some[0]["separability_n"]
        correlations.append((*where, size, ranked.value, ranked.p_value, ranked.exact, ranked.count))
    return pl.DataFrame(correlations, schema=CORRELATION_SCHEMA, orient="row")


@dataclass(frozen=True)
class RankCorrelation:
    """`value` and `p_value` (two-sided) are None if one side is constant, or there are fewer than three pairs."""

    value: float | None
    p_value: float | None
    exact: bool
    count: int


def rank_correlation(first: Sequence[float], second: Sequence[float], seed: int = 0) -> RankCorrelation:
    """Over the finite pairs, with the p-value of no relation.

    All orders are tried for up to 8 pairs, else 10,000 random ones, plus the observed one.
    """
    from scipy.stats import rankdata, spearmanr  # takes long to import

    pairs = [(a, b) for a, b in zip(first, second, strict=True) if math.isfinite(a) and math.isfinite(b)]
    exact, sides = len(pairs) <= EXACT_UP_TO, list(zip(*pairs, strict=True))
    if len(pairs) < 3 or any(len(set(side)) == 1 for side in sides):
        return RankCorrelation(None, None, exact, len(pairs))
    value = float(spearmanr(*sides).statistic)
    x, y = (_standard(torch.from_numpy(rankdata(side))) for side in sides)
    orders = _all_orders(len(x)) if exact else _some_orders(len(x), seed)
    as_far = int(((x[orders] @ y).abs() >= abs(value) - _TIE).sum())
    p_value = as_far / len(orders) if exact else (as_far + 1) / (len(orders) + 1)
    return RankCorrelation(value, p_value, exact, len(pairs))


def least_p_value(count: int) -> float:
    """The smallest two-sided p-value that this many pairs can give, without ties."""
    return min(1.0, 2 / math.factorial(count)) if count <= EXACT_UP_TO else 1 / (PERMUTATIONS + 1)


def _standard(ranked: Tensor) -> Tensor:
    """So that the inner product of two is their correlation: thousands of orders take one matrix product."""
    centred = ranked - ranked.mean()
    length: Tensor = centred.norm()
    return centred / length


@lru_cache(maxsize=1)  # every length and way has as many layers
def _all_orders(count: int) -> Tensor:
    return torch.tensor(list(itertools.permutations(range(count))))


def _some_orders(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(PERMUTATIONS, count, generator=generator, dtype=torch.float64).argsort(-1)
