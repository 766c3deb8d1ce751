"""Section 3, distance: how far the selected tokens lie from the rest.

y_i = a_i x_i are the weighted token vectors, s the sum of the selected ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._checks import Number, checked_rows, root


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
        """Weight of the selected keys."""
        return torch.where(self.inside, self.weights, 0.0).sum(-1)


def split(weights: Tensor, vectors: Tensor, count: Number, mask: Tensor | None) -> Split:
    row = checked_rows(weights, vectors, count, mask)
    y = row.weights.unsqueeze(-1) * torch.where(row.visible.unsqueeze(-1), row.vectors, 0.0)
    s = torch.where(row.chosen.unsqueeze(-1), y, 0.0).sum(-2)
    return Split(row.weights, row.vectors, y, row.chosen, row.visible & ~row.chosen, s)


def norm(vectors: Tensor) -> Tensor:
    """Euclidean norm over the last dimension, with gradient 0 (not NaN) at the zero vector."""
    return root((vectors**2).sum(-1))


def _largest(values: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, values, 0.0).amax(-1)


def _diameter(parts: Split) -> Tensor:
    """d1: largest distance between a selected and an unselected token vector."""
    gaps = norm(parts.vectors.unsqueeze(-2) - parts.vectors.unsqueeze(-3))
    pairs = parts.outside.unsqueeze(-1) & parts.inside.unsqueeze(-2)
    return torch.where(pairs, gaps, 0.0).amax((-2, -1))


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
    rest = parts.outside.sum(-1)
    return (1 - mass) * _diameter(parts) + _largest(norm(parts.vectors), parts.inside) * (mass * rest - (1 - mass))


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
    return (1 - mass) * _diameter(parts) + _largest(norm(parts.vectors), parts.inside) * root(bracket)


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
    return (1 - mass) * _diameter(parts) + (2 * mass - 1).abs() * _largest(norm(parts.vectors), parts.inside)
