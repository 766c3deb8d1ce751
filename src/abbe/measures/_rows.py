"""What every measure reads: attention rows of one layer, one window and a block of queries, and sets of their keys.

The sets of a row are those of largest weight, and random ones of the same sizes as the control."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._arguments import is_whole, shown
from .._errors import AbbeError
from .._kernels.calls import KernelsBrokenError, load, over_rows, usable_for
from .._tensors import where_double
from ._state import Reading

__all__ = [
    "DEFAULT_GRID",
    "USUAL_SIZE",
    "Rows",
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
FUSED_FROM = 1 << 12  # with fewer logits plain torch is done before kernels are loaded

_SUM_TOLERANCE = 2e-5  # rounding of a float32 row that sums to 1


class RowFacts(NamedTuple):
    """One number per row, each (head, query), from a single pass over the rows."""

    keys: Tensor  # n, the visible keys (int64)
    first: Tensor  # position of the first visible key (int64; 0 in a row without keys)
    last: Tensor  # one past the position of the last visible key (int64)
    total: Tensor  # sum of the weights
    squares: Tensor  # sum of their squares
    log_moment: Tensor  # sum of w ln w over the positive ones
    largest: Tensor  # largest weight of a visible key
    smallest: Tensor  # smallest weight of a visible key
    at_first: Tensor  # weight of the first visible key
    spread: Tensor  # largest minus smallest visible logit
    stray: Tensor  # largest |weight| of an invisible key: must be 0


@dataclass(frozen=True, eq=False)
class RowSummary:
    """The numbers per row that most measures need, without logits and weights."""

    facts: RowFacts
    range_limit: Tensor | None
    softmax: bool
    sink: bool

    @property
    def count(self) -> Tensor:
        return self.facts.keys

    @property
    def alive(self) -> Tensor:
        facts = self.facts
        return (facts.keys > 0) & ((facts.largest != 0) | (facts.smallest != 0))

    @property
    def is_distribution(self) -> Tensor:
        facts = self.facts
        return (facts.smallest >= 0) & ((facts.total - 1).abs() <= _SUM_TOLERANCE)

    def defined(self, grid: Sequence[int]) -> Tensor:
        """Bool (head, query, N): a set of N leaves some visible key out, and the weights are not all 0."""
        sizes = torch.tensor(tuple(grid), device=self.count.device)
        return (self.count.unsqueeze(-1) > sizes) & self.alive.unsqueeze(-1)


@dataclass(frozen=True, eq=False)
class Rows:
    """Attention rows of one layer, one window and a block of queries: what every measure reads.

    A logit of -inf marks an invisible key, whose weight is 0. On a device without float64, in which measures are
    summed, rows are copied to the CPU.

    Attributes:
        logits: (head, query, key), floating.
        weights: (head, query, key), of the same dtype.
        vectors: (group, key, feature): one group for all heads, one for every head, or one for every key head; head h
            uses group h // (heads/groups).
        range_limit: (head, query), a proved ceiling of the spread of the logits.
        softmax: the weights are the softmax of the logits, without a sink, so that the bounds for softmax apply.
        sink: a learned sink takes what the weights leave of 1.
        sink_logits: (head,), of the sink; if missing, they are recovered from the weights, less exactly.

    Examples:
        >>> logits = torch.randn(2, 5, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> rows.heads, rows.queries, rows.keys
        (2, 5, 8)
    """

    logits: Tensor
    weights: Tensor
    vectors: Tensor
    range_limit: Tensor | None = None
    softmax: bool = False
    sink: bool = False
    sink_logits: Tensor | None = None

    def __post_init__(self) -> None:
        _check(self)
        for name in ("logits", "weights", "vectors", "range_limit", "sink_logits"):
            if (tensor := getattr(self, name)) is not None:
                object.__setattr__(self, name, where_double(tensor))

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.logits.shape[0]

    @property
    def queries(self) -> int:
        """Number of queries in the block."""
        return self.logits.shape[1]

    @property
    def keys(self) -> int:
        """Number of keys, visible or not."""
        return self.logits.shape[2]

    @property
    def fused(self) -> bool:
        """Whether the kernels take these rows: float32 on the CPU, and enough of them."""
        parts = (self.logits, self.weights, self.vectors)
        is_single = all(part.dtype == torch.float32 for part in parts)
        return is_single and self.logits.numel() >= FUSED_FROM and usable_for(*parts)

    @cached_property
    def facts(self) -> RowFacts:
        """Numbers per row, from a single pass over the rows."""
        facts = _facts(self)
        for bad, what in (
            (~torch.isfinite(facts.total), "must be finite, got NaN or infinity"),
            (facts.stray > 0, "must be 0 at invisible keys (logit -inf), got others"),
        ):
            if bool(bad.any()):
                head, query = bad.nonzero()[0].tolist()
                raise AbbeError(f"weights {what} at head {head}, query {query} of the block")
        return facts

    @property
    def visible(self) -> Tensor:
        """Bool (head, query, key). Computed at every call, not kept: it is large."""
        return self.logits != -torch.inf

    @property
    def count(self) -> Tensor:
        """n, the number of visible keys, (head, query)."""
        return self.facts.keys

    @property
    def alive(self) -> Tensor:
        """Bool (head, query): some visible key has a weight other than 0."""
        return self.summary.alive

    @property
    def is_distribution(self) -> Tensor:
        """Bool (head, query): weights >= 0 that sum to 1, so that the bounds for such rows apply."""
        return self.summary.is_distribution

    @property
    def summary(self) -> RowSummary:
        """The numbers per row, without logits and weights."""
        return RowSummary(self.facts, self.range_limit, self.softmax, self.sink)

    def with_vectors(self, vectors: Tensor) -> Rows:
        """The same rows with other vectors; the facts are not computed again.

        Args:
            vectors: (group, key, feature).
        """
        rows = replace(self, vectors=vectors)
        # Facts depend on logits and weights alone; this is where cached_property stores them.
        rows.__dict__["facts"] = self.facts
        return rows

    def group(self, head: int) -> Tensor:
        """The vectors (key, feature) that a head uses.

        Args:
            head: its number, from 0.
        """
        return self.vectors[head // (self.heads // self.vectors.shape[0])]

    def order(self, largest: int) -> Tensor:
        """Positions of the keys of largest weight, in order; the earlier of equal ones comes first.

        Args:
            largest: how many, at most the number of keys.

        Returns:
            (head, query, largest). Beyond the visible keys of a row the positions are meaningless.
        """
        largest = min(largest, self.keys)
        if self.fused:
            with suppress(KernelsBrokenError):
                return _fused_order(self, largest)
        weights = torch.where(self.visible, self.weights, -torch.inf)
        return weights.argsort(dim=-1, descending=True, stable=True)[..., :largest]


def _check(rows: Rows) -> None:
    logits, weights, vectors = rows.logits, rows.weights, rows.vectors
    if logits.ndim != 3 or weights.shape != logits.shape or 0 in logits.shape:
        shapes = f"{tuple(logits.shape)} and {tuple(weights.shape)}"
        raise AbbeError(f"logits and weights must have the same shape (head, query, key), got {shapes}")
    if not logits.is_floating_point() or logits.dtype != weights.dtype or vectors.dtype != weights.dtype:
        types = f"{logits.dtype}, {weights.dtype} and {vectors.dtype}"
        raise AbbeError(f"logits, weights and vectors must have the same floating-point type, got {types}")
    if vectors.ndim != 3 or vectors.shape[1] != logits.shape[2] or not vectors.shape[0] or not vectors.shape[2]:
        raise AbbeError(f"vectors must be (group, {logits.shape[2]} keys, feature), got {tuple(vectors.shape)}")
    if logits.shape[0] % vectors.shape[0]:
        raise AbbeError(f"vectors have {vectors.shape[0]} groups, which do not divide {logits.shape[0]} heads")
    if rows.range_limit is not None and rows.range_limit.shape != logits.shape[:2]:
        shape = tuple(rows.range_limit.shape)
        raise AbbeError(f"range_limit must be (head, query) = {tuple(logits.shape[:2])}, got {shape}")
    if rows.sink_logits is not None and (not rows.sink or rows.sink_logits.shape != logits.shape[:1]):
        raise AbbeError(f"sink_logits go with sink=True and must be ({logits.shape[0]} heads,)")
    if rows.softmax and rows.sink:
        raise AbbeError("softmax=True means weights without a sink: it cannot go with sink=True")


def reference_facts(rows: Rows) -> RowFacts:
    """The specification, in plain torch."""
    visible, weights = rows.visible, rows.weights
    count, first = visible.sum(-1), visible.int().argmax(-1)
    some = count > 0
    return RowFacts(
        keys=count,
        first=first,
        last=torch.where(some, rows.keys - visible.flip(-1).int().argmax(-1), 0),
        total=weights.sum(-1),
        squares=(weights**2).sum(-1),
        # 0 ln 0 = 0; the negative weights of some normalizers have no entropy.
        log_moment=torch.xlogy(weights.clamp(min=0), torch.where(weights > 0, weights, 1.0)).sum(-1),
        largest=torch.where(some, torch.where(visible, weights, -torch.inf).amax(-1), 0.0),
        smallest=torch.where(some, torch.where(visible, weights, torch.inf).amin(-1), 0.0),
        at_first=weights.gather(-1, first.unsqueeze(-1)).squeeze(-1),
        spread=torch.where(some, rows.logits.amax(-1) - torch.where(visible, rows.logits, torch.inf).amin(-1), 0.0),
        stray=torch.where(visible, 0.0, weights.abs()).amax(-1),
    )


def row_kernel(name: str) -> Any:
    return load("abbe.measures._row_kernels", name)


def _facts(rows: Rows) -> RowFacts:
    if rows.fused:
        with suppress(KernelsBrokenError):
            return _fused_facts(rows)
    return reference_facts(rows)


def _fused_order(rows: Rows, largest: int) -> Tensor:
    order = torch.empty(rows.heads * rows.queries, largest, dtype=torch.int64)
    over_rows(row_kernel("weight_order"), len(order), flat(rows.logits), flat(rows.weights), order)
    return order.view(rows.heads, rows.queries, largest)


def _fused_facts(rows: Rows) -> RowFacts:
    shape = rows.logits.shape[:2]
    whole, sums = torch.empty(shape.numel(), 3, dtype=torch.int64), torch.empty(shape.numel(), 8)
    over_rows(row_kernel("row_facts"), len(sums), flat(rows.logits), flat(rows.weights), whole, sums)
    return RowFacts(*(part.view(shape) for part in (*whole.unbind(-1), *sums.unbind(-1))))


def flat(x: Tensor) -> Tensor:
    """(head, query, key) as (row, key), contiguous, without a gradient: what a kernel takes."""
    return x.detach().reshape(-1, x.shape[-1]).contiguous()


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
