"""Rows, token vectors and subsets for the tests of the bounds, with oracles in plain Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

Vector = Sequence[float]
TEMPERATURES = (0.05, 0.3, 1.0, 7.0)
temperatures = st.sampled_from(TEMPERATURES)


def tensor(*values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def at_most(low: object, high: object, rel: float = 1e-9, atol: float = 1e-12) -> bool:
    """low <= high, but for rounding."""
    low, high = torch.as_tensor(low, dtype=torch.float64), torch.as_tensor(high, dtype=torch.float64)
    return bool((low <= high + rel * high.abs() + atol).all())


def close(value: object, wanted: object, rel: float = 1e-9, atol: float = 1e-12) -> None:
    value = torch.as_tensor(value, dtype=torch.float64)
    wanted = torch.as_tensor(wanted, dtype=torch.float64).expand(value.shape)
    torch.testing.assert_close(value, wanted, rtol=rel, atol=atol)


def logit_rows(min_size: int = 1, max_size: int = 10) -> st.SearchStrategy[Tensor]:
    """Smooth rows, rows with ties, two-level rows, and rows with far outliers."""
    fine = st.integers(-8_000, 8_000).map(lambda i: i / 1024)
    coarse = st.integers(-3, 3).map(float)
    two_level = st.sampled_from([0.0, 2.5])
    far = st.sampled_from([-1e4, -40.0, 0.0, 0.5, 40.0, 1e4])
    kinds = (fine, coarse, two_level, st.one_of(fine, far))
    return st.one_of(*[st.lists(kind, min_size=min_size, max_size=max_size) for kind in kinds]).map(
        lambda row: torch.tensor(row, dtype=torch.float64)
    )


def weight_rows(min_size: int = 1, max_size: int = 10) -> st.SearchStrategy[Tensor]:
    """Weights that sum to 1: softmax rows from flat to one-hot, and exact fractions."""
    soft = st.builds(lambda row, t: torch.softmax(row / t, -1), logit_rows(min_size, max_size), temperatures)
    parts = st.lists(st.integers(0, 9), min_size=min_size, max_size=max_size).filter(any)
    return st.one_of(soft, parts.map(lambda row: torch.tensor(row, dtype=torch.float64) / sum(row)))


@dataclass(frozen=True)
class Placed:
    """A row of weights with token vectors and N."""

    a: Tensor
    x: Tensor
    n: int

    @property
    def keys(self) -> int:
        return len(self.a)

    @property
    def y(self) -> list[list[float]]:
        return [[a * c for c in x] for a, x in zip(self.a.tolist(), self.x.tolist(), strict=True)]


@st.composite
def placed(draw: st.DrawFn, min_size: int = 1, max_size: int = 8) -> Placed:
    """Vectors in general position, on a line, around a common direction, equal, opposite in pairs, or zero."""
    a = draw(weight_rows(min_size, max_size))
    keys, width = len(a), draw(st.integers(1, 3))
    flat = draw(st.lists(st.integers(-40, 40), min_size=keys * width, max_size=keys * width))
    x = torch.tensor(flat, dtype=torch.float64).view(keys, width) / 8
    kind = draw(st.sampled_from(["free", "line", "common", "equal", "opposite", "zero"]))
    if kind == "line":
        x = x[:, :1] * x[:1]
    elif kind == "common":
        x = x / 10 + 3
    elif kind == "equal":
        x = x[:1].expand(keys, width).clone()
    elif kind == "opposite":
        x = x[:1] * (1 - 2 * (torch.arange(keys) % 2)).double().unsqueeze(-1)
    elif kind == "zero":
        x = torch.where(torch.arange(keys).unsqueeze(-1) % 2 == 0, x, 0.0)
    return Placed(a, x, draw(st.integers(1, keys)))


def marked(keys: int, subset: Iterable[int]) -> Tensor:
    return torch.tensor([i in set(subset) for i in range(keys)])


def subsets(keys: int, count: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(keys), count))


def plain_sum(y: Sequence[Vector], which: Iterable[int]) -> list[float]:
    chosen = [y[i] for i in which]
    return [math.fsum(v[c] for v in chosen) for c in range(len(y[0]))]


def plain_distance(y: Sequence[Vector], subset: Iterable[int]) -> float:
    """sum_{i outside} ||y_i - s||, by its definition."""
    inside = set(subset)
    s = plain_sum(y, inside)
    return math.fsum(math.dist(v, s) for i, v in enumerate(y) if i not in inside)


def plain_net_distance(y: Sequence[Vector], subset: Iterable[int]) -> float:
    """||sum_{i outside} y_i - s||, by its definition."""
    inside = set(subset)
    return math.dist(plain_sum(y, inside), plain_sum(y, set(range(len(y))) - inside))


def top(a: Tensor, n: int) -> list[int]:
    """Indices of the n largest, earlier ones first among equals."""
    values = a.tolist()
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:n]


def padded(values: Tensor, fill: float, seed: int = 0, dim: int = -1) -> tuple[Tensor, Tensor]:
    """The same row with three absent keys that hold `fill` in between, and the mask that hides them."""
    keys = values.shape[dim]
    places = torch.randperm(keys + 3, generator=torch.Generator().manual_seed(seed))[:keys].sort().values
    shape = list(values.shape)
    shape[dim] = keys + 3
    longer = torch.full(shape, fill, dtype=values.dtype).index_copy(dim, places, values)
    return longer, marked(keys + 3, places.tolist())


@st.composite
def exact_cases(draw: st.DrawFn, max_size: int = 8) -> Placed:
    """Weights in 64ths and whole vectors: all squared distances are exact, so ties are ties."""
    keys = draw(st.integers(1, max_size))
    parts = draw(st.lists(st.integers(0, 64 // keys), min_size=keys, max_size=keys))
    width = draw(st.integers(1, 3))
    flat = draw(st.lists(st.integers(-4, 4), min_size=keys * width, max_size=keys * width))
    x = torch.tensor(flat, dtype=torch.float64).view(keys, width)
    return Placed(torch.tensor(parts, dtype=torch.float64) / 64, x, draw(st.integers(1, keys)))
