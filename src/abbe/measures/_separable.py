"""Separable weight: the share of a row's weight on tokens that are separable in its output. Fair to exact zeros.

Separability (arXiv 2508.17821) counts tokens, including those on the surface of the ball. With exact zeros, all keys
without weight lie at the origin, at the same distance ||s|| from the sum s: where a sparse normalizer gives weight to
fewer than N keys, such keys fill up the set, tie with the unselected ones, and each counts as separable. Here a token
counts by its weight, and only strictly inside the ball, so ties and zeros gain nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._rows import Rows
from ._sets import USUAL_SIZE
from ._state import Reading

_TIE = 1e-12  # of the squares: distances that differ by less are equal up to the rounding of dot products


def separable_weight(rows: Rows, size: int = USUAL_SIZE) -> Reading:
    """Share of the row's weight on selected tokens with ||y_i - s|| < min ||y_j - s|| over the unselected ones.

    y_i = a_i x_i, s the sum over the selected: the `size` keys of largest weight, or all visible keys but one where
    they are fewer. An unselected key of weight 0 is a point at the origin. Float64, because distances come from dot
    products. High means that the weight lies on tokens that are separable in the output, low that it does not.

    Args:
        rows: a block of attention rows.
        size: N >= 1.

    Returns:
        A share, (head, query), defined for rows of at least two keys whose weights do not sum to 0.

    Examples:
        >>> logits = torch.tensor([[[5.0, 0.0, 0.0, 0.0]]])
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.eye(4)[None], softmax=True)
        >>> round(float(abbe.measures.separable_weight(rows, size=1).value), 3)
        0.98
    """
    order, places = rows.order(size), torch.arange(size, device=rows.logits.device)
    chosen = places[: order.shape[-1]] < (rows.count - 1).unsqueeze(-1)
    weights, vectors = rows.weights.double(), rows.vectors.double()
    # Beyond the visible keys an order repeats some key: adding 0 there is right, setting 0 would not be.
    nothing = torch.zeros_like(weights)
    of_members = nothing.scatter_add(-1, order, torch.where(chosen, weights.gather(-1, order), 0.0))
    member = nothing.scatter_add_(-1, order, chosen.double()) > 0
    centre = by_groups(of_members, vectors)
    far = _squared_distances(weights, vectors, centre)
    nearest = torch.where(rows.visible & ~member, far, torch.inf).amin(-1, keepdim=True)
    tie = _TIE * ((centre**2).sum(-1, keepdim=True) + nearest)
    inside = torch.where(far < nearest - tie, of_members, 0.0).sum(-1)
    total = weights.sum(-1)
    defined = (rows.count > 1) & (total > 0)
    return Reading(inside / torch.where(defined, total, 1.0), defined)


def active_keys(rows: Rows) -> Reading:
    """How many keys have a weight above 0. High (n) means a dense row, low a sparse one.

    Args:
        rows: a block of attention rows.

    Returns:
        A whole number of keys, (head, query).

    Examples:
        >>> logits = torch.tensor([[[2.0, 0.0, 0.0]]])
        >>> rows = abbe.measures.Rows(logits, abbe.normalizer("sparsemax")(logits), torch.randn(1, 3, 4))
        >>> int(abbe.measures.active_keys(rows).value)
        1
    """
    return Reading((rows.weights > 0).sum(-1), rows.count > 0)


def _squared_distances(weights: Tensor, vectors: Tensor, centre: Tensor) -> Tensor:
    """||a_i x_i - s||^2, (head, query, key), without the points themselves."""
    squares = (vectors**2).sum(-1).repeat_interleave(len(weights) // len(vectors), 0)
    dots = by_groups(centre, vectors.mT)
    return weights * (weights * squares[:, None] - 2 * dots) + (centre**2).sum(-1, keepdim=True)


def by_groups(left: Tensor, right: Tensor) -> Tensor:
    """Batched matrix product where consecutive heads share a group.

    Args:
        left: (head, query, m).
        right: (group, m, n); the groups divide the heads.

    Returns:
        (head, query, n).

    Examples:
        >>> abbe.measures.by_groups(torch.randn(8, 5, 16), torch.randn(2, 16, 4)).shape
        torch.Size([8, 5, 4])
    """
    grouped = left.reshape(len(right), -1, left.shape[-1]) @ right
    return grouped.view(*left.shape[:2], -1)
