"""Catalogue, section 3: distance."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _distance as distance
from . import _expected as expected
from ._statements import PAPER, PLACED, SMALL, Point, Sizes, count_of, entries, normal, placed, rows_and_vectors

_expected_distance = placed(expected.expected_distance_exact)


def _mean_square_net_distance(point: Point) -> Tensor:
    a, x = point.weights, point["vectors"]
    return expected.mean_over_subsets(a, count_of(point), lambda chosen: distance.net_distance(a, x, chosen) ** 2)


def _growing(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    """Equal weights, token vectors around a common direction, for the claim about N proportional to L."""
    keys = sizes["keys"]
    vectors = normal(generator, trials, keys, sizes["width"]) + 1.0
    flat = torch.zeros(trials, keys, dtype=torch.float64)
    return Point({"logits": flat, "log_temperature": flat[:, 0], "vectors": vectors}, sizes)


def _of_the_first(point: Point, keys: int) -> Tensor:
    """Distance of the first quarter of the first `keys` tokens, at equal weights."""
    x = point["vectors"][..., :keys, :]
    a = x.new_full(x.shape[:-1], 1 / keys)
    return distance.distance(a, x, keys // 4)


_selected = entries("distance", sampler=rows_and_vectors, sizes=PLACED)
_random = entries("distance", assumptions="uniform random N-subset", sampler=rows_and_vectors, sizes=SMALL)

DISTANCE = (
    _selected("theorem-1", "d <= (1 - abar) d1 + max||x|| (abar (L-N) - (1 - abar)) (Theorem 1(1), linear)",
              r"\tilde d \le (1-\bar a_N)d_1 + \max_{I_N}\|x_j\|\,(\bar a_N(L-N)-(1-\bar a_N))",
              placed(distance.distance), placed(distance.distance_bound),
              source=PAPER, assumptions="weights sum to 1, top-N set"),
    _selected("theorem-1-root",
              "d <= (1 - abar) d1 + max||x|| sqrt(abar (L-N) - (1 - abar)) (Theorem 1(1) with a root)",
              r"\tilde d \le (1-\bar a_N)d_1 + \max_{I_N}\|x_j\|\sqrt{\bar a_N(L-N)-(1-\bar a_N)}",
              placed(distance.distance), placed(distance.distance_bound_root_paper),
              source=PAPER, assumptions="weights sum to 1, top-N set", status="refuted", tight=False),
    _random("theorem-1-random-paper",
            "E d <= ((L-N)/L) sum ||y_i - N/(L-1) sum_{j!=i} y_j|| for a random N-subset "
            "(Theorem 1(2) without epsilon)",
            r"\mathbb E\,\tilde d \le \frac{L-N}{L}\sum_i\Big\|y_i-\frac{N}{L-1}\sum_{j\ne i}y_j\Big\|",
            _expected_distance, placed(expected.expected_distance_bound_paper),
            source=PAPER, status="refuted", tight=False),
    _random("expected-distance-upper", "E d <= ((L-N)/L) sum sqrt(||mu_i||^2 + V_i)",
            r"\mathbb E\,\tilde d \le \frac{L-N}{L}\sum_i\sqrt{\|\mu_i\|^2+V_i}", _expected_distance,
            lambda p: placed(expected.expected_distance_bounds)(p)[1]),
    _random("expected-distance-lower", "E d >= ((L-N)/L) sum ||mu_i||",
            r"\mathbb E\,\tilde d \ge \frac{L-N}{L}\sum_i\|\mu_i\|", _expected_distance,
            lambda p: placed(expected.expected_distance_bounds)(p)[0], side="lower"),
    _random("expected-distance-ceiling", "E d <= (N + 1) M for every L, M = max ||x||",
            r"\mathbb E\,\tilde d \le (N+1)M", _expected_distance,
            lambda p: expected.expected_distance_ceiling(count_of(p), distance.norm(p["vectors"]).amax(-1)),
            assumptions="uniform random N-subset, weights sum to 1", tight=False),
    _selected("distance-sandwich-upper", "d <= (L-N) ||s|| + sum_out ||y_i||",
              r"\tilde d \le (L-N)\|s\| + \sum_{i\notin I_N}\|y_i\|", placed(distance.distance),
              lambda p: placed(distance.distance_sandwich)(p)[1], assumptions="any set"),
    _selected("distance-sandwich-lower", "d >= (L-N) ||s|| - sum_out ||y_i||",
              r"\tilde d \ge (L-N)\|s\| - \sum_{i\notin I_N}\|y_i\|", placed(distance.distance),
              lambda p: placed(distance.distance_sandwich)(p)[0], assumptions="any set", side="lower"),
    _selected("net-distance", "||sum_out y - s|| <= (1 - abar) d1 + |2 abar - 1| max||x||",
              r"\Big\|\sum_{i\notin I_N}y_i-s\Big\| \le (1-\bar a_N)d_1+|2\bar a_N-1|\max_{I_N}\|x_j\|",
              placed(distance.net_distance), placed(distance.net_distance_bound), assumptions="weights sum to 1"),
    _random("net-distance-moment",
            "E||net||^2 = [1 - 4N/L + 4N(N-1)/(L(L-1))] ||z||^2 + [4N(L-N)/(L(L-1))] Q",
            r"\mathbb E\|\cdot\|^2=\Big[1-\tfrac{4N}{L}+\tfrac{4N(N-1)}{L(L-1)}\Big]\|z\|^2+\tfrac{4N(L-N)}{L(L-1)}Q",
            _mean_square_net_distance, placed(expected.expected_net_distance_squared),
            side="equal", searchable=False, tolerance=1e-6),  # a mean of squares over all subsets, equal to rounding
    _selected("collapse-paper", "for N = L/4 the distance falls as L grows: d(16 keys) <= d(8 keys)",
              r"N\propto L \Rightarrow \tilde d\to 0", lambda p: _of_the_first(p, 16), lambda p: _of_the_first(p, 8),
              source=PAPER, assumptions="none stated", status="refuted", tight=False, sampler=_growing,
              sizes=({"keys": 16, "count": 4, "width": 1},), searchable=False),
)  # fmt: skip
