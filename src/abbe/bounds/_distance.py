"""The distance between selected tokens and the rest, its bounds, and its mean over random sets."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from .._errors import AbbeError
from ._checks import (
    Number,
    checked_rows,
    checked_vectors,
    checked_weights,
    key_count,
    not_negative,
    root,
    selected_count,
)

__all__ = [
    "distance",
    "distance_bound",
    "distance_bound_root_paper",
    "distance_sandwich",
    "expected_distance_bound_paper",
    "expected_distance_bounds",
    "expected_distance_ceiling",
    "expected_distance_exact",
    "expected_net_distance_squared",
    "net_distance",
    "net_distance_bound",
]


class Split(NamedTuple):
    """Rows cut into selected and other keys."""

    weights: Tensor  # (..., L), 0 where absent
    vectors: Tensor  # (..., L, d)
    y: Tensor  # (..., L, d)
    inside: Tensor  # selected
    outside: Tensor  # visible, not selected
    s: Tensor  # (..., d)

    @property
    def mass(self) -> Tensor:
        """abar, the weight of the selected keys."""
        return torch.where(self.inside, self.weights, 0.0).sum(-1)

    @property
    def longest(self) -> Tensor:
        """The largest ||x|| of a selected key."""
        return torch.where(self.inside, norm(self.vectors), 0.0).amax(-1)

    @property
    def diameter(self) -> Tensor:
        """d1, the largest distance between a selected and an unselected vector."""
        gaps = norm(self.vectors.unsqueeze(-2) - self.vectors.unsqueeze(-3))
        pairs = self.outside.unsqueeze(-1) & self.inside.unsqueeze(-2)
        return torch.where(pairs, gaps, 0.0).amax((-2, -1))


def split(weights: Tensor, vectors: Tensor, count: Number, mask: Tensor | None) -> Split:
    row = checked_rows(weights, vectors, count, mask)
    y = row.weights.unsqueeze(-1) * torch.where(row.visible.unsqueeze(-1), row.vectors, 0.0)
    s = torch.where(row.chosen.unsqueeze(-1), y, 0.0).sum(-2)
    return Split(row.weights, row.vectors, y, row.chosen, row.visible & ~row.chosen, s)


def norm(vectors: Tensor) -> Tensor:
    """Euclidean norm over the last dimension, with gradient 0 (not NaN) at the zero vector."""
    return root((vectors**2).sum(-1))


def distance(weights: Tensor, vectors: Tensor, count: Number, mask: Tensor | None = None) -> Tensor:
    """How far the selected tokens lie from the rest: sum_{i not selected} ||y_i - s||, the paper's cumulative distance.

    It mostly measures (L - N) ||s||, see `distance_sandwich`: divide by L - N before comparing lengths. High means that
    the selected tokens lie far from the rest, low that they lie among it. Source: arXiv 2508.17821.

    Args:
        weights: (..., keys), >= 0, with a sum of at most 1.
        vectors: token vectors, (..., keys, d).
        count: N, for the N largest weights, or a bool tensor that marks the selected set.
        mask: bool, True = visible, broadcasts to the weights.

    Returns:
        Distance, (...), in the unit of the vectors.

    Examples:
        >>> weights, vectors = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([[2.0], [0.0], [4.0]])
        >>> float(abbe.bounds.distance(weights, vectors, 1))
        1.0
    """
    parts = split(weights, vectors, count, mask)
    return torch.where(parts.outside, norm(parts.y - parts.s.unsqueeze(-2)), 0.0).sum(-1)


def net_distance(weights: Tensor, vectors: Tensor, count: Number, mask: Tensor | None = None) -> Tensor:
    """How far the selected part of the output lies from the rest of it: ||sum_{i not selected} y_i - s||.

    The variant of `distance` found in summaries of the paper. High means that the two parts differ, low that
    they agree.

    Args:
        weights, vectors, count, mask: as for `distance`.

    Returns:
        Distance, (...), in the unit of the vectors.

    Examples:
        >>> weights, vectors = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([[2.0], [0.0], [8.0]])
        >>> float(abbe.bounds.net_distance(weights, vectors, 1))
        1.0
    """
    parts = split(weights, vectors, count, mask)
    return norm(torch.where(parts.outside.unsqueeze(-1), parts.y, 0.0).sum(-2) - parts.s)


def distance_bound(weights: Tensor, vectors: Tensor, count: Number, mask: Tensor | None = None) -> Tensor:
    """Upper bound of `distance`, Theorem 1(1): (1 - abar) d1 + max_selected ||x|| (abar (L-N) - (1 - abar)).

    abar is the mass of the selected set, d1 the largest distance between a selected and an unselected vector. Assumes
    weights that sum to 1 and a selected set of the N largest weights, which makes the bracket non-negative for
    L - N >= 1. Tight: equality for identical vectors. A low value means that the selected tokens cannot lie far from
    the rest. Source: arXiv 2508.17821, proof checked by this project.

    Args:
        weights, vectors, count, mask: as for `distance`.

    Returns:
        Bound, (...), in the unit of the vectors.

    Examples:
        >>> weights, vectors = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([[2.0], [0.0], [4.0]])
        >>> float(abbe.bounds.distance_bound(weights, vectors, 1))
        2.0
    """
    parts = split(weights, vectors, count, mask)
    mass = parts.mass
    return (1 - mass) * parts.diameter + parts.longest * (mass * parts.outside.sum(-1) - (1 - mass))


def distance_bound_root_paper(weights: Tensor, vectors: Tensor, count: Number, mask: Tensor | None = None) -> Tensor:
    """Theorem 1(1) with the bracket under a square root, another reading. FALSE: identical vectors refute it.

    The true form is `distance_bound`. Source: arXiv 2508.17821.

    Args:
        weights, vectors, count, mask: as for `distance`.

    Returns:
        What the formula gives, (...), in the unit of the vectors; small values say nothing.

    Examples:
        >>> weights, equal = torch.full((8,), 1 / 8), torch.ones(8, 1)
        >>> claimed = abbe.bounds.distance_bound_root_paper(weights, equal, 4)
        >>> bool(abbe.bounds.distance(weights, equal, 4) <= claimed)
        False
    """
    parts = split(weights, vectors, count, mask)
    mass = parts.mass
    bracket = (mass * parts.outside.sum(-1) - (1 - mass)).clamp(min=0)
    return (1 - mass) * parts.diameter + parts.longest * root(bracket)


def distance_sandwich(
    weights: Tensor, vectors: Tensor, count: Number, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Range of `distance`, given the sum of the selected tokens: (L-N) ||s|| +- sum_{not selected} ||y_i||.

    For any set. Tight: equality for identical vectors (left) and for unselected vectors opposite to s (right). Source:
    this project. A narrow interval means that the distance says no more than the length of s, a wide one that it may.

    Args:
        weights, vectors, count, mask: as for `distance`.

    Returns:
        Lower and upper bound, each (...), in the unit of the vectors.

    Examples:
        >>> weights, vectors = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([[2.0], [0.0], [4.0]])
        >>> [float(bound) for bound in abbe.bounds.distance_sandwich(weights, vectors, 1)]
        [1.0, 3.0]
    """
    parts = split(weights, vectors, count, mask)
    middle = parts.outside.sum(-1) * norm(parts.s)
    slack = torch.where(parts.outside, norm(parts.y), 0.0).sum(-1)
    return middle - slack, middle + slack


def net_distance_bound(weights: Tensor, vectors: Tensor, count: Number, mask: Tensor | None = None) -> Tensor:
    """Upper bound of `net_distance`: (1 - abar) d1 + |2 abar - 1| max_selected ||x||.

    For weights that sum to 1 and any set. Tight: equality for identical vectors. A low value means that selected and
    other parts must agree. Source: this project.

    Args:
        weights, vectors, count, mask: as for `distance`.

    Returns:
        Bound, (...), in the unit of the vectors.

    Examples:
        >>> weights, vectors = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([[2.0], [0.0], [8.0]])
        >>> float(abbe.bounds.net_distance_bound(weights, vectors, 1))
        3.0
    """
    parts = split(weights, vectors, count, mask)
    mass = parts.mass
    return (1 - mass) * parts.diameter + (2 * mass - 1).abs() * parts.longest


class _Moments(NamedTuple):
    y: Tensor
    z: Tensor
    squares: Tensor  # ||y_i||^2
    keys: Tensor  # L of each row
    chosen: Tensor  # N
    visible: Tensor


def _moments(weights: Tensor, vectors: Tensor, count: Number, mask: Tensor | None) -> _Moments:
    weights, visible = checked_weights(weights, mask)
    vectors = checked_vectors(vectors, weights)
    keys = visible.sum(-1).to(weights.dtype)
    n = selected_count(count, keys).to(weights.dtype)
    y = weights.unsqueeze(-1) * torch.where(visible.unsqueeze(-1), vectors, 0.0)
    return _Moments(y, y.sum(-2), (y**2).sum(-1), keys, n, visible)


def _expected_terms(m: _Moments) -> tuple[Tensor, Tensor]:
    """||mu_i||^2 and V_i of the random sum of N of the other keys, seen from key i."""
    keys, n = m.keys.unsqueeze(-1), m.chosen.unsqueeze(-1)
    others = m.z.unsqueeze(-2) - m.y
    centre = ((m.y - (n / (keys - 1).clamp(min=1)).unsqueeze(-1) * others) ** 2).sum(-1)
    # Rows of one or two keys must not divide by 0: nothing is random there, and the product below is 0.
    factor = n * (keys - 1 - n) / ((keys - 1).clamp(min=1) * (keys - 2).clamp(min=1))
    scatter = m.squares.sum(-1, keepdim=True) - m.squares - (others**2).sum(-1) / (keys - 1).clamp(min=1)
    # A variance: negative values are rounding.
    return centre, (factor * scatter).clamp(min=0)


def _averaged(m: _Moments, terms: Tensor) -> Tensor:
    return (m.keys - m.chosen) / m.keys * torch.where(m.visible, root(terms), 0.0).sum(-1)


def expected_distance_bounds(
    weights: Tensor, vectors: Tensor, count: Number, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Expected distance of a uniform random N-subset, between two closed forms (Theorem 1(2) corrected).

    ((L-N)/L) sum_i ||mu_i|| <= E d <= ((L-N)/L) sum_i sqrt(||mu_i||^2 + V_i), mu_i = y_i - N/(L-1) (z - y_i),
    V_i = N(L-1-N)/((L-1)(L-2)) (Q - ||y_i||^2 - ||z - y_i||^2/(L-1)). Any weights. Both sides by Jensen; equality
    on both when the subset does not matter (N = L-1, or equal y). Source: this project. It is the random control
    for `distance`: a higher `distance` means that the selection lies farther out than chance would put it.

    Args:
        weights: (..., keys), >= 0, with a sum of at most 1.
        vectors: token vectors, (..., keys, d).
        count: N, 1 to the visible keys.
        mask: bool, True = visible, broadcasts to the weights.

    Returns:
        Lower and upper bound of the mean distance, each (...), in the unit of the vectors.

    Examples:
        >>> weights, vectors = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([[2.0], [0.0], [4.0]])
        >>> [round(float(bound), 3) for bound in abbe.bounds.expected_distance_bounds(weights, vectors, 1)]
        [1.333, 1.609]
    """
    m = _moments(weights, vectors, count, mask)
    centre, variance = _expected_terms(m)
    return _averaged(m, centre), _averaged(m, centre + variance)


def expected_distance_bound_paper(
    weights: Tensor, vectors: Tensor, count: Number, mask: Tensor | None = None
) -> Tensor:
    """Theorem 1(2) without its epsilon: ((L-N)/L) sum_i ||y_i - N/(L-1) sum_{j != i} y_j|| as an UPPER bound.

    FALSE: by Jensen it is a lower bound, the left side of `expected_distance_bounds`. Source: arXiv 2508.17821.

    Args:
        weights, vectors, count, mask: as for `expected_distance_bounds`.

    Returns:
        What the formula gives, (...), in the unit of the vectors: the mean distance is at least this.

    Examples:
        >>> weights, vectors = torch.full((4,), 0.25), torch.eye(4)
        >>> claimed = abbe.bounds.expected_distance_bound_paper(weights, vectors, 1)
        >>> bool(abbe.bounds.expected_distance_exact(weights, vectors, 1) <= claimed)
        False
    """
    return expected_distance_bounds(weights, vectors, count, mask)[0]


def expected_distance_ceiling(count: Number, largest_norm: Number) -> Tensor:
    """Bound of the expected distance of random N-subsets at any length: E d <= (N + 1) M for every L, M >= max ||x||.

    The mean over random subsets does not grow with the row. For weights that sum to at most 1. Not tight. A low value
    means that random sets cannot lie far from the rest. Source: this project.

    Args:
        count: N >= 1.
        largest_norm: M >= 0, at least the length of every token vector.

    Returns:
        Bound, in the unit of the vectors.

    Examples:
        >>> float(abbe.bounds.expected_distance_ceiling(20, 1.5))
        31.5
    """
    return (key_count("count", count) + 1) * not_negative("largest_norm", largest_norm)


def expected_net_distance_squared(
    weights: Tensor, vectors: Tensor, count: Number, mask: Tensor | None = None
) -> Tensor:
    """Mean square of `net_distance` over uniform random N-subsets, exact.

    [1 - 4N/L + 4N(N-1)/(L(L-1))] ||z||^2 + [4N(L-N)/(L(L-1))] Q. Any weights and vectors. High means that random parts
    of the output differ, low that they agree. Source: this project.

    Args:
        weights, vectors, count, mask: as for `expected_distance_bounds`.

    Returns:
        Mean square, (...), in the squared unit of the vectors.

    Examples:
        >>> weights, vectors = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([[2.0], [0.0], [4.0]])
        >>> round(float(abbe.bounds.expected_net_distance_squared(weights, vectors, 1)), 3)
        1.333
    """
    m = _moments(weights, vectors, count, mask)
    n, keys = m.chosen, m.keys
    pairs = keys * (keys - 1).clamp(min=1)
    # A single key has no pairs: it is the set, or the rest.
    straight = torch.where(keys > 1, 1 - 4 * n / keys + 4 * n * (n - 1) / pairs, 1.0)
    return straight * (m.z**2).sum(-1) + 4 * n * (keys - n) / pairs * m.squares.sum(-1)


def expected_distance_exact(weights: Tensor, vectors: Tensor, count: int, limit: int = 200_000) -> Tensor:
    """Expected distance over all N-subsets by enumeration, for small rows; what `abbe verify` measures.

    High means that even random sets lie far from the rest. Source: this project.

    Args:
        weights: (..., keys), >= 0, with a sum of at most 1.
        vectors: token vectors, (..., keys, d).
        count: N, 1 to the keys.
        limit: on the number of subsets.

    Returns:
        Mean of `distance`, (...), in the unit of the vectors.

    Raises:
        AbbeError: there are more subsets than `limit`.

    Examples:
        >>> weights, vectors = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([[2.0], [0.0], [4.0]])
        >>> round(float(abbe.bounds.expected_distance_exact(weights, vectors, 1)), 3)
        1.333
    """
    weights, _ = checked_weights(weights)
    checked_vectors(vectors, weights)
    keys = weights.shape[-1]
    selected_count(count, torch.tensor(float(keys)))
    if math.comb(keys, count) > limit:
        raise AbbeError(f"count and keys give {math.comb(keys, count)} subsets, more than {limit}")
    return mean_over_subsets(weights, count, lambda chosen: distance(weights, vectors, chosen))


def mean_over_subsets(weights: Tensor, count: int, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean of a measure of marked keys, over all sets of `count` keys."""
    keys = weights.shape[-1]
    total = torch.zeros_like(weights[..., 0])
    for subset in combinations(range(keys), count):
        chosen = torch.zeros(keys, dtype=torch.bool, device=weights.device)
        chosen[list(subset)] = True
        total = total + measure(chosen.expand(weights.shape))
    return total / math.comb(keys, count)
