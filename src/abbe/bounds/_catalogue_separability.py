"""Catalogue, section 4: separability."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from . import _separability as separability
from ._catalogue_common import OURS, PAPER, PLACED, count_of, keys_of
from ._statements import Point, Quantity, Sizes, Statement, Status, normal, rows_and_vectors

_DRAWS = 4000  # of a simulated share: a standard error below 0.01

SPHERE: tuple[Sizes, ...] = tuple({"count": n, "width": d} for n, d in ((1, 3), (2, 3), (5, 8), (16, 64)))


def _on_the_sphere(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    """Selected weights, a radius, and a simulated E N_s/N with its standard error, for each of some trials."""
    count = max(10, min(trials // 20, 100))
    return Point(dict(_simulated(generator.initial_seed(), count, sizes["count"], sizes["width"])), sizes)


@lru_cache(maxsize=32)  # four statements look at the same draws
def _simulated(seed: int, trials: int, count: int, width: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(2, trials, generator=generator, dtype=torch.float64)
    a = torch.softmax(normal(generator, trials, count), -1) * uniform[0].unsqueeze(-1)
    radius = (a**2).sum(-1).sqrt() * (0.3 + 1.7 * uniform[1])
    hits = []
    for row, r in zip(a, radius, strict=True):
        x = normal(generator, _DRAWS, count, width)
        y = row.unsqueeze(-1) * x / x.norm(dim=-1, keepdim=True)
        far = (y - y.sum(-2, keepdim=True)).norm(dim=-1)
        hits.append((far <= r * (1 + 1e-12)).double().mean(-1))  # on the sphere is within, despite rounding
    shares = torch.stack(hits)
    # No hit at all, or nothing but hits, is still uncertain by about 1/draws.
    error = shares.std(-1) / math.sqrt(_DRAWS) + 1 / _DRAWS
    return {"weights": a, "radius": radius, "mean": shares.mean(-1), "error": error}


def _as_printed(point: Point) -> tuple[Tensor, Tensor]:
    return separability.sphere_separability_bounds_paper(point["weights"], point["radius"], 0.0)


def _corrected(point: Point) -> tuple[Tensor, Tensor]:
    return separability.sphere_separability_bounds(point["weights"], point["radius"], point.sizes["width"])


def _sphere(
    name: str, text: str, latex: str, source: str, status: Status, side: Literal["upper", "lower"], bound: Quantity
) -> Statement:
    return Statement(
        name, "separability", text, latex, source, "vectors iid uniform on a sphere, fixed radius", status, False,
        _on_the_sphere, lambda p: p["mean"], bound, side, SPHERE, False, lambda p: p["error"],
    )  # fmt: skip


def _sphere_estimate(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    trials = max(20, min(trials // 10, 100))
    keys, width, count = sizes["keys"], sizes["width"], sizes["count"]
    x = normal(generator, trials, keys, width)
    a = torch.full((trials, keys), 1 / keys, dtype=torch.float64)
    chosen = (torch.arange(keys) < count).expand(trials, keys)
    ratio = separability.separability(a, x / x.norm(dim=-1, keepdim=True), chosen).ratio.double()
    return Point({"mean": ratio.mean().unsqueeze(0), "error": (ratio.std() / math.sqrt(trials)).unsqueeze(0)}, sizes)


SEPARABILITY: tuple[Statement, ...] = (
    _sphere("theorem-2-lower", "E N_s/N >= 1 - sum xi_i/(N r) (Theorem 2, left side)",
            r"\mathbb E\,N_s/N \ge 1-\frac{\sum\xi_i}{Nr}", PAPER, "proved", "lower", lambda p: _as_printed(p)[0]),
    _sphere("theorem-2-upper", "E N_s/N <= (1/N) sum exp(-(xi_i - r)^2/(2 M^2)) (Theorem 2, right side)",
            r"\mathbb E\,N_s/N \le \frac1N\sum_i e^{-(\xi_i-r)^2/(2M^2)}", PAPER, "refuted", "upper",
            lambda p: _as_printed(p)[1]),
    _sphere("sphere-lower", "E N_s/N >= mean of 1 - min{v_i/r^2, W_i/(W_i + (r^2 - v_i)^2)} where r^2 > v_i",
            r"P_i \ge 1-\min\{v_i/r^2,\,W_i/(W_i+(r^2-v_i)^2)\}", OURS, "proved", "lower", lambda p: _corrected(p)[0]),
    _sphere("sphere-upper", "E N_s/N <= mean of W_i/(W_i + (v_i - r^2)^2) where r^2 < v_i",
            r"P_i \le W_i/(W_i+(v_i-r^2)^2)", OURS, "proved", "upper", lambda p: _corrected(p)[1]),
    Statement(
        "sphere-estimate", "separability",
        "E N_s/N is about E Phi(sqrt(d/N) - max of L-N normals), within 10 %",
        r"\mathbb E\,N_s/N \approx \mathbb E\,\Phi(\sqrt{d/N}-g_{L-N})",
        OURS, "equal weights, vectors uniform on a sphere", "approximation", False, _sphere_estimate,
        lambda p: p["mean"],
        lambda p: separability.sphere_separability_estimate(
            count_of(p), keys_of(p), p.sizes["width"]
        ).reshape(1).to(p["mean"]),
        "equal", ({"keys": 128, "count": 8, "width": 96}, {"keys": 256, "count": 16, "width": 96}), False,
        lambda p: p["error"], 0.1,
    ),
    Statement(
        "eighty-percent-paper", "separability",
        "at most 80 % of the selected tokens are distinguishable",
        r"N_s/N \le 0.8",
        PAPER, "an observation on GPT-2", "refuted", False, rows_and_vectors,
        lambda p: separability.separability(p.weights, p["vectors"], count_of(p)).ratio.double(),
        lambda p: p.weights.new_full(p.weights.shape[:-1], 0.8, dtype=torch.float64), sizes=PLACED, searchable=False,
    ),
)  # fmt: skip
