"""Section 4, geometric separability: which selected tokens a ball around their sum separates from the rest."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .._errors import AbbeError
from ._checks import Number, checked_weights, key_count, not_negative, positive, probability, root, selected_count
from ._distance import norm, split

__all__ = [
    "BallCount",
    "Retrieval",
    "coverage_paper",
    "precision_recall",
    "separability",
    "sphere_separability_bounds",
    "sphere_separability_bounds_paper",
    "sphere_separability_estimate",
]


class BallCount(NamedTuple):
    """Separability of selected sets. A ratio of 1 means that all selected tokens are separable, low that few are.

    Attributes:
        ratio: N_s/N, (...), in [0, 1].
        radius: of the ball, (...).
        inside: bool, (..., keys): the selected keys within it.
    """

    ratio: Tensor
    radius: Tensor
    inside: Tensor


class Retrieval(NamedTuple):
    """How well a ball separates a selected set. High (1) means that the set is a ball by itself.

    Attributes:
        recall: share of the selected that are nearer than every other token.
        precision: share of the selected among the tokens in their ball.
        f: harmonic mean of both.
    """

    recall: Tensor
    precision: Tensor
    f: Tensor


def _centre_distances(
    weights: Tensor, vectors: Tensor, count: Number, mask: Tensor | None, metric: str = "euclidean"
) -> tuple[Tensor, Tensor, Tensor]:
    """Distance of every y_i to the sum of the selected ones; the selected and the other visible keys."""
    parts = split(weights, vectors, count, mask)
    y, s = parts.y, parts.s.unsqueeze(-2)
    if metric == "euclidean":
        return norm(y - s), parts.inside, parts.outside
    if metric != "cosine":
        raise AbbeError(f"metric must be 'euclidean' or 'cosine', got {metric!r}")
    lengths = norm(y) * norm(s)
    cosine = (y * s).sum(-1) / torch.where(lengths > 0, lengths, 1.0)
    return 1 - cosine, parts.inside, parts.outside


def separability(
    weights: Tensor, vectors: Tensor, count: Number, radius: Number | None = None, mask: Tensor | None = None
) -> BallCount:
    """N_s/N: the share of the selected tokens with ||y_i - s|| <= r, s the sum of the selected.

    Invariant under rotations and a common scale; 1 at N = 1. High means that the ball separates most selected tokens
    from the rest, low that few; compare it with random sets of the same size. Source: arXiv 2508.17821.

    Args:
        weights: (..., keys), >= 0, with a sum of at most 1.
        vectors: token vectors, (..., keys, d).
        count: N, for the N largest weights, or a bool tensor that marks the selected set.
        radius: r >= 0; by default the distance of the nearest unselected token (infinite when all are selected).
        mask: bool, True = visible, broadcasts to the weights.

    Returns:
        The share, the radius, and the selected keys within it.

    Examples:
        >>> weights, vectors = torch.tensor([0.4, 0.4, 0.1, 0.1]), torch.eye(4)
        >>> float(abbe.bounds.separability(weights, vectors, 2).ratio)
        1.0
    """
    far, chosen, rest = _centre_distances(weights, vectors, count, mask)
    nearest = torch.where(rest, far, math.inf).amin(-1)
    r = nearest if radius is None else not_negative("radius", radius, weights).expand(nearest.shape)
    inside = chosen & (far <= r.unsqueeze(-1))
    return BallCount(inside.sum(-1) / chosen.sum(-1), r, inside)


def precision_recall(
    weights: Tensor,
    vectors: Tensor,
    count: Number,
    metric: Literal["euclidean", "cosine"] = "euclidean",
    mask: Tensor | None = None,
) -> Retrieval:
    """Recall, precision and F of a selected set as a ball around its sum s.

    Recall #{selected: D_i < rho_min}/N, precision N/(N + #{unselected: D_j <= rho_max}), D_i the distance of y_i to s,
    rho_min the least D outside, rho_max the greatest inside. High means that the selected set is a ball by itself, low
    that it is mixed with the rest. Sources: "Geometric Analysis of Token Selection in Multi-Head Attention" (arXiv
    2602.01893), which defines them, and "Retrieval Capacity of Self-Attention Under Competition" (arXiv 2609.37879),
    which takes y_i = a_i v_i in value space; both by authors of arXiv 2508.17821.

    Args:
        weights: (..., keys), >= 0, with a sum of at most 1.
        vectors: token vectors, (..., keys, d).
        count: N, for the N largest weights, or a bool tensor that marks the selected set.
        metric: "euclidean" or "cosine" (1 minus the cosine of the angle to s).
        mask: bool, True = visible, broadcasts to the weights.

    Returns:
        Three shares in [0, 1], each (...).

    Examples:
        >>> weights, vectors = torch.tensor([0.4, 0.4, 0.1, 0.1]), torch.eye(4)
        >>> [round(float(share), 3) for share in abbe.bounds.precision_recall(weights, vectors, 2)]
        [1.0, 1.0, 1.0]
    """
    far, chosen, rest = _centre_distances(weights, vectors, count, mask, metric)
    nearest = torch.where(rest, far, math.inf).amin(-1, keepdim=True)
    farthest = torch.where(chosen, far, -math.inf).amax(-1, keepdim=True)
    n = chosen.sum(-1).to(far.dtype)
    recall = (chosen & (far < nearest)).sum(-1) / n
    precision = n / (n + (rest & (far <= farthest)).sum(-1))
    return Retrieval(recall, precision, 2 * precision * recall / (precision + recall))


def _sum_of_others(weights: Tensor, power: int) -> Tensor:
    """sum_{j != i} a_j^power for every selected i."""
    raised = weights**power
    return raised.sum(-1, keepdim=True) - raised


def sphere_separability_bounds(
    weights: Tensor, radius: Number, dimension: Number, norm_of_vectors: Number = 1.0
) -> tuple[Tensor, Tensor]:
    """Bounds of the mean separability of random vectors (Theorem 2 corrected): uniform on the sphere, iid, fixed r.

    v_i = M^2 sum_{j != i} a_j^2, W_i = (2 M^4/d) [(sum_{j != i} a_j^2)^2 - sum_{j != i} a_j^4];
    r^2 > v_i: P >= 1 - min{v_i/r^2, W_i/(W_i + (r^2 - v_i)^2)}; r^2 < v_i: P <= W_i/(W_i + (v_i - r^2)^2) (Markov,
    Cantelli); averaged over i. Not tight. A high lower bound means that random vectors are separable at this radius.
    Source: this project.

    Args:
        weights: of the selected keys alone, (..., N).
        radius: r > 0 of the ball.
        dimension: d >= 1 of the vectors.
        norm_of_vectors: M > 0, their length.

    Returns:
        Lower and upper bound of E N_s/N, in [0, 1].

    Examples:
        >>> low, high = abbe.bounds.sphere_separability_bounds(torch.full((10,), 0.1), radius=0.4, dimension=64)
        >>> round(float(low), 3), float(high)
        (0.956, 1.0)
    """
    a, _ = checked_weights(weights)
    square = positive("radius", radius, a).unsqueeze(-1) ** 2
    m = positive("norm_of_vectors", norm_of_vectors, a).unsqueeze(-1)
    d = key_count("dimension", dimension).to(a).unsqueeze(-1)
    v = m**2 * _sum_of_others(a, 2)
    # A variance: negative values are rounding.
    w = (2 * m**4 / d * (_sum_of_others(a, 2) ** 2 - _sum_of_others(a, 4))).clamp(min=0)
    gap = (square - v) ** 2
    # 0/0 where nothing is random and r^2 = v: the trivial bound.
    cantelli = torch.where(w + gap > 0, w / torch.where(w + gap > 0, w + gap, 1.0), 1.0)
    low = torch.where(square > v, 1 - torch.minimum(v / square, cantelli), 0.0)
    high = torch.where(square < v, cantelli, 1.0)
    return low.mean(-1), high.mean(-1)


def sphere_separability_bounds_paper(
    weights: Tensor, radius: Number, apart: Number, norm_of_vectors: Number = 1.0
) -> tuple[Tensor, Tensor]:
    """Theorem 2 as printed: 1 - sum xi_i/(N r) <= E N_s/N <= (1/N) sum exp(-(xi_i - r)^2/(2 M^2)).

    xi_i^2 = M^2 sum_{j != i} a_j^2 + sum_{j != k} a_j a_k (M^2 - delta^2/2), vectors at least delta from each other.
    The upper side is FALSE, already at N = 1, where N_s/N = 1 for every r >= 0; the lower side is true (Markov and
    Jensen). Source: arXiv 2508.17821, reconstructed from its proofs.

    Args:
        weights: of the selected keys alone, (..., N).
        radius: r > 0 of the ball.
        apart: delta >= 0, the least distance between two vectors.
        norm_of_vectors: M > 0, the length of the vectors.

    Returns:
        What the formulas give as lower and upper side; a low upper side says nothing.

    Examples:
        >>> _, claimed = abbe.bounds.sphere_separability_bounds_paper(torch.tensor([1.0]), radius=2.0, apart=1.0)
        >>> bool(claimed < 1)  # but one token is always separable
        True
    """
    a, _ = checked_weights(weights)
    r = positive("radius", radius, a).unsqueeze(-1)
    m = positive("norm_of_vectors", norm_of_vectors, a).unsqueeze(-1)
    delta = not_negative("apart", apart, a).unsqueeze(-1)
    squares, sums = _sum_of_others(a, 2), _sum_of_others(a, 1)
    xi = root(m**2 * squares + (sums**2 - squares) * (m**2 - delta**2 / 2))
    return 1 - (xi / r).mean(-1), torch.exp(-((xi - r) ** 2) / (2 * m**2)).mean(-1)


def sphere_separability_estimate(count: Number, keys: Number, dimension: Number, points: int = 2001) -> Tensor:
    """Mean separability by geometry alone: uniform weights, uniform vectors on the sphere, r the nearest unselected.

    E Phi(sqrt(d/N) - max of L - N standard normals). An approximation, for L - N >= 1. Source: this project. High means
    that random sets of this size are separable by geometry alone: a head must beat it.

    Args:
        count: N, 1 to L - 1.
        keys: L >= 2.
        dimension: d >= 1 of the vectors.
        points: of the numerical integral, >= 1.

    Returns:
        E N_s/N, in [0, 1].

    Examples:
        >>> [round(float(abbe.bounds.sphere_separability_estimate(20, 1024, d)), 3) for d in (64, 768)]
        [0.084, 0.997]
    """
    if points < 1:
        raise AbbeError(f"points must be a whole number >= 1, got {points}")
    keys, d = key_count("keys", keys, 2), key_count("dimension", dimension)
    n = selected_count(count, keys - 1)
    rest, lift = (keys - n).unsqueeze(-1), torch.sqrt(d / n).unsqueeze(-1)
    # The maximum of m normals has the distribution function Phi^m: integrate in equal steps of probability.
    levels = (torch.arange(points, dtype=torch.float64, device=rest.device) + 0.5) / points
    largest = torch.special.ndtri(torch.exp(torch.log(levels) / rest))
    mean: Tensor = torch.special.ndtr(lift - largest).mean(-1)
    return mean


def coverage_paper(single: Number, heads: Number) -> Tensor:
    """Chance that one of H heads covers a token, 1 - (1 - p)^H: an assumption (independent heads), not a theorem.

    High means that some head would cover it if heads were independent. Source: arXiv 2508.17821.

    Args:
        single: p in [0, 1], the chance of one head.
        heads: H >= 1.

    Returns:
        Chance, in [0, 1].

    Examples:
        >>> round(float(abbe.bounds.coverage_paper(0.2, 12)), 4)
        0.9313
    """
    return 1 - (1 - probability("single", single)) ** key_count("heads", heads)
