"""Spearman's rank correlation with a permutation test: few layers, many ties, no tables of critical values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

EXACT_UP_TO = 8  # 40,320 orders
PERMUTATIONS = 10_000  # drawn of more: p-values down to 1e-4
_TIE = 1e-12  # correlations of the same ranks in another order of summation differ by less: they count as equal


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
