"""Rows to measure: random ones of many shapes and masks, and nasty ones."""

from __future__ import annotations

import math

import scipy.stats
import torch
from torch import Tensor

import abbe
from abbe.measures import Rows


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_mask(kind: str, heads: int, queries: int, keys: int, seed: int) -> Tensor:
    """Bool (head, query, key). "some" leaves gaps and rows without any key."""
    if kind == "all":
        return torch.ones(heads, queries, keys, dtype=torch.bool)
    last = torch.linspace(0, keys - 1, queries).round().long()[:, None]
    place = torch.arange(keys)
    if kind == "causal":
        return (place <= last).expand(heads, -1, -1)
    if kind == "window":
        return ((place <= last) & (place > last - max(2, keys // 3))).expand(heads, -1, -1)
    drawn = torch.rand(heads, queries, keys, generator=seeded(seed + 1)) < 0.7
    drawn[0, 0] = False
    return drawn


def random_rows(
    seed: int = 0,
    heads: int = 4,
    queries: int = 6,
    keys: int = 20,
    width: int = 5,
    groups: int | None = None,
    spec: str = "softmax",
    mask: str = "causal",
    scale: float = 2.0,
    dtype: torch.dtype = torch.float64,
) -> Rows:
    draw = seeded(seed)
    logits = scale * torch.randn(heads, queries, keys, generator=draw, dtype=torch.float64)
    logits = logits.masked_fill(~random_mask(mask, heads, queries, keys, seed), -math.inf)
    vectors = 0.4 + torch.randn(groups or heads, keys, width, generator=draw, dtype=torch.float64)
    made = abbe.normalizer(spec).double()
    with torch.no_grad():
        weights = made(logits)
    return as_type(Rows(logits, weights, vectors, softmax=spec == "softmax", sink=spec.startswith("sink")), dtype)


def as_type(rows: Rows, dtype: torch.dtype) -> Rows:
    return changed(
        rows, logits=rows.logits.to(dtype), weights=rows.weights.to(dtype), vectors=rows.vectors.to(dtype)
    )  # fmt: skip


def changed(rows: Rows, **parts: Tensor) -> Rows:
    given = {"logits": rows.logits, "weights": rows.weights, "vectors": rows.vectors} | parts
    return Rows(**given, softmax=rows.softmax, sink=rows.sink)


def masked_and_absent(seed: int, dtype: torch.dtype) -> tuple[Rows, Rows]:
    """Rows of which every third key is hidden, with other vectors there, and the same rows without these keys."""
    rows = random_rows(seed, heads=3, queries=5, keys=30, mask="all")
    kept = torch.arange(30) % 3 != 1
    logits = rows.logits.masked_fill(~kept, -math.inf)
    weights = torch.softmax(logits, -1)
    garbage = torch.where(kept[:, None], rows.vectors, 1e3 * torch.randn(3, 30, 5, generator=seeded(1)).double())
    absent = Rows(logits[..., kept], weights[..., kept], rows.vectors[:, kept], softmax=True)
    return as_type(Rows(logits, weights, garbage, softmax=True), dtype), as_type(absent, dtype)


def nasty_rows(dtype: torch.dtype = torch.float64) -> dict[str, Rows]:
    """Softmax rows at the edges of what is allowed."""
    keys, width = 12, 3
    draw = seeded(5)
    vectors = torch.randn(1, keys, width, generator=draw, dtype=torch.float64)
    flat = torch.zeros(1, 3, keys, dtype=torch.float64)
    one = flat.clone()
    one[:, :, 4:] = -math.inf
    one[:, 0, 1:], one[:, 1, 2:] = -math.inf, -math.inf
    wild = 1e4 * torch.randn(1, 3, keys, generator=draw, dtype=torch.float64)
    two = flat.clone()
    two[..., :2] = 3.0
    rough = torch.randn(1, 3, keys, generator=draw, dtype=torch.float64)
    shapes = {
        "ties": (flat, vectors),
        "two levels": (two, vectors),
        "few visible": (one, vectors),
        "single key": (torch.zeros(1, 1, 1, dtype=torch.float64), vectors[:, :1]),
        "huge logits": (wild, vectors),
        "equal vectors": (rough, vectors[:, :1].expand(-1, keys, -1)),
        "equal weights and vectors": (flat, vectors[:, :1].expand(-1, keys, -1)),
        "zero vectors": (rough, torch.zeros_like(vectors)),
        "one zero vector": (rough, torch.cat([torch.zeros_like(vectors[:, :1]), vectors[:, 1:]], 1)),
        "opposite vectors": (rough, torch.cat([vectors[:, :6], -vectors[:, :6]], 1)),
        "large vectors": (rough, 1e4 * vectors),
        "no key": (torch.full((1, 2, keys), -math.inf, dtype=torch.float64), vectors),
    }
    softmax = abbe.normalizer("softmax")
    return {
        name: as_type(Rows(logits, softmax(logits), x.contiguous(), softmax=True), dtype)
        for name, (logits, x) in shapes.items()
    }


def expanded_tail(windows: int, level: float) -> float:
    """Share of the resamples beyond each end of an interval (Hesterberg 2015), by scipy."""
    student = scipy.stats.t.ppf((1 + level) / 2, windows - 1)
    return float(scipy.stats.norm.cdf(-student * math.sqrt(windows / (windows - 1))))
