"""The selected sets of a query, random ones of the same sizes, and the weight on tokens that the output separates."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from .._arguments import is_whole, shown
from .._errors import AbbeError
from .._kernels.switch import KernelsBrokenError
from .._kernels.threads import over_rows
from ._rows import Rows, flat, row_kernel
from ._state import Reading

__all__ = [
    "DEFAULT_GRID",
    "USUAL_SIZE",
    "Sets",
    "active_keys",
    "by_groups",
    "checked_grid",
    "choose_sets",
    "random_order",
    "separable_weight",
]

DEFAULT_GRID = (1, 2, 5, 10, 20, 50, 100)  # holds the sizes of arXiv 2508.17821, figure 2b
USUAL_SIZE = 20  # of a selected set, where one size represents all


@dataclass(frozen=True, eq=False)
class Sets:
    """The keys of selected and of random sets, for all sizes at once: the first N of an order are the set of size N.

    Attributes:
        grid: the sizes N, rising.
        selected: keys by falling weight, (head, query, largest N).
        random: visible keys in a random order, the same shape: the control.
    """

    grid: tuple[int, ...]
    selected: Tensor
    random: Tensor

    def defined(self, rows: Rows) -> Tensor:
        """Where a set can be compared with the rest.

        Args:
            rows: the rows that the sets are of.

        Returns:
            Bool (head, query, N): the set leaves some visible key out, and the weights are not all 0.
        """
        return rows.summary.defined(self.grid)

    def at_grid(self, running: Tensor) -> Tensor:
        """Entries N - 1 of running sums or extremes; the last one where N is beyond it.

        Args:
            running: (head, query, largest).

        Returns:
            (head, query, N).
        """
        at = torch.tensor(self.grid, device=running.device).clamp(max=running.shape[-1]) - 1
        return running[..., at]


def choose_sets(rows: Rows, grid: Sequence[int], generator: torch.Generator) -> Sets:
    """The selected sets of every row, and one uniform random order of its visible keys as the control.

    Args:
        rows: a block of attention rows.
        grid: the sizes N, whole numbers >= 1, rising.
        generator: of the random order; drawn from query by query, so that any blocks give the same sets.

    Returns:
        Both orders, for all sizes.

    Examples:
        >>> logits = torch.tensor([[[0.0, 3.0, 1.0]]])
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 3, 4), softmax=True)
        >>> abbe.measures.choose_sets(rows, (1, 2), torch.Generator().manual_seed(0)).selected.tolist()
        [[[1, 2]]]
    """
    grid = checked_grid(grid)
    largest = min(grid[-1], rows.keys)
    draws = torch.rand(rows.queries, rows.heads, largest, generator=generator, dtype=torch.float64)
    draws = draws.transpose(0, 1).to(rows.logits.device)
    return Sets(grid, rows.order(grid[-1]), random_order(rows, draws))


def checked_grid(grid: Sequence[int]) -> tuple[int, ...]:
    """The sizes of sets as a tuple.

    Args:
        grid: whole numbers >= 1, rising.

    Raises:
        AbbeError: they are not.

    Examples:
        >>> abbe.measures.checked_grid([1, 5, 20])
        (1, 5, 20)
    """
    sizes = tuple(grid)
    if not sizes or any(not is_whole(n) or not 1 <= n < 2**63 for n in sizes) or sorted(set(sizes)) != list(sizes):
        raise AbbeError(f"sizes must hold whole numbers >= 1 in rising order, got {shown(list(sizes))}")
    return sizes


def random_order(rows: Rows, draws: Tensor) -> Tensor:
    """The start of a uniform random order of the visible keys (Fisher and Yates).

    Args:
        rows: a block of attention rows.
        draws: uniform numbers in [0, 1), (head, query, how many).

    Returns:
        Keys, of the shape of the draws.

    Examples:
        >>> logits = torch.tensor([[[0.0, -torch.inf, 1.0]]])
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 3, 4), softmax=True)
        >>> sorted(abbe.measures.random_order(rows, torch.rand(1, 1, 2)).flatten().tolist())
        [0, 2]
    """
    if rows.fused:
        with suppress(KernelsBrokenError):
            return _fused_random_order(rows, draws)
    return reference_random_order(rows, draws)


def _fused_random_order(rows: Rows, draws: Tensor) -> Tensor:
    order = torch.empty(rows.heads * rows.queries, draws.shape[-1], dtype=torch.int64)
    over_rows(row_kernel("random_order"), len(order), flat(rows.logits), flat(draws), order)
    return order.view(draws.shape)


def reference_random_order(rows: Rows, draws: Tensor) -> Tensor:
    visible = rows.visible
    order = visible.int().argsort(dim=-1, descending=True, stable=True)  # the visible keys first, in their order
    count = visible.sum(-1)
    for k in range(draws.shape[-1]):
        left = (count - k).clamp(min=1)
        other = (k + torch.minimum((draws[..., k] * left).long(), left - 1)).unsqueeze(-1)
        here, there = order[..., k : k + 1].clone(), order.gather(-1, other)
        order.scatter_(-1, other, here)
        order[..., k : k + 1] = there
    return order[..., : draws.shape[-1]].contiguous()


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
