"""Catalogue, section 4: separability."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from . import _separability as separability
from ._statements import PAPER, PLACED, Point, Sizes, count_of, entries, keys_of, normal, rows_and_vectors

_DRAWS = 4000  # of a simulated share: a standard error below 0.01

SPHERE: tuple[Sizes, ...] = tuple({"count": n, "width": d} for n, d in ((1, 3), (2, 3), (5, 8), (16, 64)))


def _on_the_sphere(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    """Selected weights, a radius, and a simulated E N_s/N with its standard error, for some trials."""
    count = max(10, min(trials // 20, 100))
    return Point(dict(_simulated(generator.initial_seed(), count, sizes["count"], sizes["width"])), sizes)


@lru_cache(maxsize=32)  # four statements share the draws
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
        hits.append((far <= r * (1 + 1e-12)).double().mean(-1))  # on the sphere counts as inside, despite rounding
    shares = torch.stack(hits)
    # No hits at all, or only hits, are still uncertain by about 1/draws.
    error = shares.std(-1) / math.sqrt(_DRAWS) + 1 / _DRAWS
    return {"weights": a, "radius": radius, "mean": shares.mean(-1), "error": error}


def _as_printed(point: Point) -> tuple[Tensor, Tensor]:
    return separability.sphere_separability_bounds_paper(point["weights"], point["radius"], 0.0)


def _corrected(point: Point) -> tuple[Tensor, Tensor]:
    return separability.sphere_separability_bounds(point["weights"], point["radius"], point.sizes["width"])


def _sphere_estimate(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    trials = max(20, min(trials // 10, 100))
    keys, width, count = sizes["keys"], sizes["width"], sizes["count"]
    x = normal(generator, trials, keys, width)
    a = torch.full((trials, keys), 1 / keys, dtype=torch.float64)
    chosen = (torch.arange(keys) < count).expand(trials, keys)
    ratio = separability.separability(a, x / x.norm(dim=-1, keepdim=True), chosen).ratio.double()
    return Point({"mean": ratio.mean().unsqueeze(0), "error": (ratio.std() / math.sqrt(trials)).unsqueeze(0)}, sizes)


def _estimate(point: Point) -> Tensor:
    size = count_of(point), keys_of(point), point.sizes["width"]
    return separability.sphere_separability_estimate(*size).reshape(1).to(point["mean"])


def _mean(point: Point) -> Tensor:
    return point["mean"]


_entry = entries("separability", tight=False, searchable=False, noise=lambda p: p["error"], sizes=SPHERE,
                 assumptions="vectors iid uniform on a sphere, fixed radius", sampler=_on_the_sphere)  # fmt: skip

SEPARABILITY = (
    _entry("theorem-2-lower", "E N_s/N >= 1 - sum xi_i/(N r) (Theorem 2, left side)",
           r"\mathbb E\,N_s/N \ge 1-\frac{\sum\xi_i}{Nr}", _mean, lambda p: _as_printed(p)[0],
           source=PAPER, side="lower"),
    _entry("theorem-2-upper", "E N_s/N <= (1/N) sum exp(-(xi_i - r)^2/(2 M^2)) (Theorem 2, right side)",
           r"\mathbb E\,N_s/N \le \frac1N\sum_i e^{-(\xi_i-r)^2/(2M^2)}", _mean, lambda p: _as_printed(p)[1],
           source=PAPER, status="refuted"),
    _entry("sphere-lower", "E N_s/N >= mean of 1 - min{v_i/r^2, W_i/(W_i + (r^2 - v_i)^2)} where r^2 > v_i",
           r"P_i \ge 1-\min\{v_i/r^2,\,W_i/(W_i+(r^2-v_i)^2)\}", _mean, lambda p: _corrected(p)[0], side="lower"),
    _entry("sphere-upper", "E N_s/N <= mean of W_i/(W_i + (v_i - r^2)^2) where r^2 < v_i",
           r"P_i \le W_i/(W_i+(v_i-r^2)^2)", _mean, lambda p: _corrected(p)[1]),
    _entry("sphere-estimate", "E N_s/N is about E Phi(sqrt(d/N) - max of L-N normals), within 10 %",
           r"\mathbb E\,N_s/N \approx \mathbb E\,\Phi(\sqrt{d/N}-g_{L-N})", _mean, _estimate,
           assumptions="equal weights, vectors uniform on a sphere", status="approximation",
           sampler=_sphere_estimate, side="equal", tolerance=0.1,
           sizes=({"keys": 128, "count": 8, "width": 96}, {"keys": 256, "count": 16, "width": 96})),
    _entry("eighty-percent-paper", "at most 80 % of the selected tokens are distinguishable", r"N_s/N \le 0.8",
           lambda p: separability.separability(p.weights, p["vectors"], count_of(p)).ratio.double(),
           lambda p: p.weights.new_full(p.weights.shape[:-1], 0.8, dtype=torch.float64), source=PAPER,
           assumptions="an observation on GPT-2", status="refuted", sampler=rows_and_vectors, sizes=PLACED,
           noise=None),
)  # fmt: skip
