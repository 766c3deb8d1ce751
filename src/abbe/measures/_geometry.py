"""Geometry: how far the selected tokens lie from the rest, and whether a ball or a cone separates them.

y_i = a_i x_i are the weighted vectors, s the sum over a set, z the sum over the row. `reference_geometry` is the
specification in plain torch; `fused_geometry` gives the same from the kernels, for float32 on the CPU.

Sources: distance and separability arXiv 2508.17821; recall, precision and F "Geometric Analysis of Token Selection in
Multi-Head Attention" (arXiv 2602.01893), in value space with a random control as in "Retrieval Capacity of
Self-Attention Under Competition" (arXiv 2609.37879)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from .._errors import AbbeError
from .._kernels.calls import KernelsBrokenError, load, over_rows, pack
from ._rows import Rows, RowSummary, Sets, flat, row_kernel
from ._state import Reading

__all__ = ["distance_formula", "expected_distance", "geometry"]

_SUMS_AT_ONCE = 1 << 24  # numbers: 64 MiB of sums of sets, which would be many times larger for wide vectors
_SUMMED_AT_ONCE = 1 << 21  # weights, times the sums of a row: queries that see about the same keys


def geometry(rows: Rows, sets: Sets) -> dict[str, Reading]:
    """How far the selected tokens lie from the rest, and whether a ball or a cone separates them.

    Distances, separability, recall, precision and F, each with its control; `list_measures` says what high and low
    mean. The control is the same measure on one random set of N visible keys around its own sum. Limits: Theorem 1(1)
    for the distance, and the deterministic bound for the net distance. Both need d1, the largest distance of a selected
    from an unselected vector; a larger number that needs no pairs replaces it: max ||x - c|| over the row plus the same
    maximum over the selected, c the weighted mean of the row. They hold for weights that sum to 1.

    Args:
        rows: a block of attention rows.
        sets: of these rows, from `choose_sets`.

    Returns:
        Readings by name, each (head, query, N): distances in the unit of the vectors, the others shares.

    Examples:
        >>> logits = torch.tensor([[[2.0, 2.0, 0.0, 0.0]]])
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.eye(4)[None], softmax=True)
        >>> sets = abbe.measures.choose_sets(rows, (2,), torch.Generator().manual_seed(0))
        >>> abbe.measures.geometry(rows, sets)["separability"].value.tolist()
        [[[1.0]]]
    """
    return geometry_readings(rows.summary, sets.grid, row_geometry(rows, sets))


class SetGeometry(NamedTuple):
    """Lengths and counts of keys of each set, (selected or random, head, query, N), valid where the set is defined."""

    distance: Tensor  # sum over the keys outside of ||y_i - s||
    net_distance: Tensor  # ||sum over the keys outside of y_i - s||
    closed: Tensor  # members no farther from s than the nearest key outside
    strict: Tensor  # members nearer to s than that
    intruders: Tensor  # keys outside no farther from s than the farthest member
    closed_cosine: Tensor  # the same three by the cosine of y_i and s
    strict_cosine: Tensor
    intruders_cosine: Tensor


class LimitTerms(NamedTuple):
    """Terms of the bounds on the distances, for the selected sets, (head, query, N)."""

    mass: Tensor  # sum of the weights
    longest: Tensor  # largest ||x|| of a member
    reach: Tensor  # max ||x - z|| over the row plus the same over the members: no two vectors lie farther apart


class RowGeometry(NamedTuple):
    sets: SetGeometry
    limits: LimitTerms


def geometry_readings(rows: RowSummary, grid: Sequence[int], parts: RowGeometry) -> dict[str, Reading]:
    defined, size = rows.defined(grid), torch.tensor(tuple(grid), device=rows.count.device)
    rest = (rows.count.unsqueeze(-1) - size).clamp(min=1)
    both = _measures(parts.sets, size, rest)
    limits = _limits(parts.limits, rest, rows.is_distribution.unsqueeze(-1))
    return {name: Reading(value, defined, limits.get(name), control) for name, (value, control) in both.items()}


def _measures(parts: SetGeometry, size: Tensor, rest: Tensor) -> dict[str, Tensor]:
    distance, net = parts.distance, parts.net_distance
    measures = {"distance": distance, "distance_per_token": distance / rest, "net_distance": net}
    by_metric = {
        "": (parts.closed, parts.strict, parts.intruders),
        "_cosine": (parts.closed_cosine, parts.strict_cosine, parts.intruders_cosine),
    }
    for metric, (closed, strict, intruders) in by_metric.items():
        recall, precision = strict / size, size / (size + intruders)
        measures[f"separability{metric}"] = closed / size
        measures[f"recall{metric}"] = recall
        measures[f"precision{metric}"] = precision
        measures[f"f_score{metric}"] = 2 * recall * precision / (recall + precision)
    return measures


def _limits(parts: LimitTerms, rest: Tensor, holds: Tensor) -> dict[str, Tensor]:
    left = (1 - parts.mass).clamp(min=0)
    distance = left * parts.reach + parts.longest * (parts.mass * rest - left)
    net = left * parts.reach + (2 * parts.mass - 1).abs() * parts.longest
    distance, net = (torch.where(holds, limit, torch.nan) for limit in (distance, net))
    return {"distance": distance, "distance_per_token": distance / rest, "net_distance": net}


def row_geometry(rows: Rows, sets: Sets) -> RowGeometry:
    x = rows.vectors.detach().contiguous()
    squares = _squares(x)
    if rows.fused:
        with suppress(KernelsBrokenError):
            return fused_geometry(rows, sets, x, squares)
    return reference_geometry(rows, sets)


def reference_geometry(rows: Rows, sets: Sets) -> RowGeometry:
    heads = [_reference_head(rows, sets, head) for head in range(rows.heads)]
    parts, limits = zip(*heads, strict=True)
    return RowGeometry(
        SetGeometry(*(torch.stack(part, 1) for part in zip(*parts, strict=True))),
        LimitTerms(*(torch.stack(part) for part in zip(*limits, strict=True))),
    )


def _reference_head(rows: Rows, sets: Sets, head: int) -> tuple[list[Tensor], LimitTerms]:
    """The fields of SetGeometry without the head, and LimitTerms."""
    a, x, visible = rows.weights[head], rows.group(head), rows.visible[head]
    of_orders = []
    for order in (sets.selected[head], sets.random[head]):
        by_size = [_reference_set(a, x, visible, _members(order, size, visible)) for size in sets.grid]
        of_orders.append([torch.stack(part, -1) for part in zip(*by_size, strict=True)])
    parts = [torch.stack(part) for part in zip(*of_orders, strict=True)]
    return parts, _reference_limits(a, x, visible, sets, sets.selected[head])


def _members(order: Tensor, size: int, visible: Tensor) -> Tensor:
    """Bool (query, key): the first `size` keys of the order."""
    return torch.zeros_like(visible).scatter(-1, order[:, :size], True) & visible


def _reference_set(a: Tensor, x: Tensor, visible: Tensor, inside: Tensor) -> tuple[Tensor, ...]:
    """Reference set in float64: keys of little weight lie almost equally far from s, which would tie in float32."""
    dtype, a, x = a.dtype, a.double(), x.double()
    outside = visible & ~inside
    y = a.unsqueeze(-1) * x
    s = torch.where(inside.unsqueeze(-1), y, 0.0).sum(-2)
    rest = torch.where(outside.unsqueeze(-1), y, 0.0).sum(-2)
    far = (y - s.unsqueeze(-2)).norm(dim=-1)
    # By x, not by y: two keys with the same vector have the same cosine whatever their weights.
    lengths = x.norm(dim=-1) * s.norm(dim=-1, keepdim=True)
    cosine = torch.sign(a) * (x * s.unsqueeze(-2)).sum(-1) / torch.where(lengths > 0, lengths, 1.0)
    alone = inside & (inside.sum(-1, keepdim=True) == 1)  # its sum is itself
    angle = torch.where(alone, torch.where((lengths > 0) & (a != 0), 0.0, 1.0), (1 - cosine).clamp(min=0))
    distance = torch.where(outside, far, 0.0).sum(-1)
    readings = distance, (rest - s).norm(dim=-1), *_ball(far, inside, outside), *_ball(angle, inside, outside)
    return tuple(part.to(dtype) for part in readings)


def _ball(far: Tensor, inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    nearest = torch.where(outside, far, torch.inf).amin(-1, keepdim=True)
    farthest = torch.where(inside, far, -torch.inf).amax(-1, keepdim=True)
    counts = ((inside & (far <= nearest)), (inside & (far < nearest)), (outside & (far <= farthest)))
    closed, strict, intruders = (counted.sum(-1).to(far.dtype) for counted in counts)
    return closed, strict, intruders


def _reference_limits(a: Tensor, x: Tensor, visible: Tensor, sets: Sets, order: Tensor) -> LimitTerms:
    centre = (a.unsqueeze(-1) * torch.where(visible.unsqueeze(-1), x, 0.0)).sum(-2, keepdim=True)
    radius = (x - centre).norm(dim=-1)
    widest = torch.where(visible, radius, 0.0).amax(-1, keepdim=True)
    inner = sets.at_grid(radius.gather(-1, order).cummax(-1).values)
    longest = sets.at_grid(x.norm(dim=-1)[order].cummax(-1).values)
    return LimitTerms(sets.at_grid(a.gather(-1, order).cumsum(-1)), longest, widest + inner)


def fused_geometry(rows: Rows, sets: Sets, x: Tensor, squares: Tensor) -> RowGeometry:
    """The sums of all weighted vectors, then one pass of a kernel over the rows.

    `x` are the contiguous vectors, `squares` the squares of their lengths. All heads go together, because every
    multi-threaded step waits for its slowest thread.
    """
    packed = pack(x)
    most = max(1, _SUMS_AT_ONCE // (rows.heads * (2 * len(sets.grid) + 1) * x.shape[-1]))
    blocks = [slice(start, min(start + most, rows.queries)) for start in range(0, rows.queries, most)]
    of_blocks = [_of_queries(rows, sets, x, packed, squares, queries) for queries in blocks]
    parts, limits = (torch.cat(each, 1) if len(blocks) > 1 else each[0] for each in zip(*of_blocks, strict=True))
    # Each field contiguous: much is computed from them.
    fields = parts.permute(4, 2, 0, 1, 3).contiguous()
    return RowGeometry(SetGeometry(*fields), LimitTerms(*limits.permute(3, 0, 1, 2).contiguous()))


def _of_queries(
    rows: Rows, sets: Sets, x: Tensor, packed: Tensor, squares: Tensor, queries: slice
) -> tuple[Tensor, Tensor]:
    """SetGeometry as (head, query, selected or random, N, field), LimitTerms as (head, query, N, field)."""
    sizes, facts = torch.tensor(sets.grid), rows.facts
    shape = rows.heads, queries.stop - queries.start
    parts = x.new_empty(*shape, 2, len(sizes), len(SetGeometry._fields))
    limits = x.new_empty(*shape, len(sizes), len(LimitTerms._fields))
    whole = torch.stack([facts.keys, facts.first, facts.last], -1)
    sums = x.new_empty(*shape, 2 * len(sizes) + 1, x.shape[-1])
    step = max(1, min(shape[1], _SUMMED_AT_ONCE // (rows.heads * sums.shape[2] * rows.keys)))
    for start in range(0, shape[1], step):
        stop = min(start + step, shape[1])
        sums[:, start:stop, -1] = _sum_all(rows, x, slice(queries.start + start, queries.start + stop))

    def by_row(x: Tensor) -> Tensor:
        return x.contiguous().flatten(0, 1)

    of_rows = (t[:, queries] for t in (rows.logits.detach(), rows.weights.detach(), whole, sets.selected, sets.random))
    logits, weights, whole, selected, random = map(by_row, of_rows)
    over_rows(
        load("abbe.measures._geometry_kernels", "set_geometry"), len(logits), by_row(sums), logits, weights, x, packed,
        squares, whole, selected, random, sizes, by_row(parts), by_row(limits),
    )  # fmt: skip
    return parts, limits


def _sum_all(rows: Rows, x: Tensor, queries: slice) -> Tensor:
    """The sum over the keys of a x, for some queries of all heads, up to the last key that they see."""
    used = max(1, int(rows.facts.last[:, queries].max()))
    weights = rows.weights.detach()[:, queries, :used].reshape(len(x), -1, used)
    return torch.bmm(weights, x[:, :used]).view(rows.heads, -1, x.shape[-1])


def expected_distance(rows: Rows, sets: Sets) -> dict[str, Reading]:
    """Distances of a uniform random set of N visible keys on average, in closed form. Any weights and vectors.

    The mean of `distance` over all sets of N visible keys lies between low = ((n-N)/n) sum_i ||mu_i|| and
    high = ((n-N)/n) sum_i sqrt(||mu_i||^2 + V_i), mu_i the mean and V_i the scatter of y_i - s over the sets without
    i. expected_net_distance is the root of the mean square of `net_distance`. High means that even random sets lie far
    from the rest, low that they do not.

    Args:
        rows: a block of attention rows.
        sets: of these rows, from `choose_sets`.

    Returns:
        Readings expected_distance_low, expected_distance_high and expected_net_distance, each (head, query, N), in the
        unit of the vectors.

    Examples:
        >>> logits = torch.randn(2, 5, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> sets = abbe.measures.choose_sets(rows, (1, 2), torch.Generator().manual_seed(0))
        >>> readings = abbe.measures.expected_distance(rows, sets)
        >>> bool((readings["expected_distance_low"].value <= readings["expected_distance_high"].value).all())
        True
    """
    defined = sets.defined(rows)
    means = torch.zeros(3, *defined.shape, dtype=torch.float64, device=defined.device)
    x = rows.vectors.detach().double()
    squares = _squares(x)
    # In a block of early queries none sees the last keys.
    used = max(1, int(rows.facts.last.max()))
    for head in range(rows.heads):  # one at a time stays in the cache
        group = head // (rows.heads // len(x))
        products = _products(rows, head, x[group, :used], squares[group, :used])
        for i, size in enumerate(sets.grid):
            means[:2, head, :, i] = _sandwich(products, size)
            means[2, head, :, i] = _net(products, size)
    low, high, net = torch.where(defined, means, 0.0)
    readings = {"expected_distance_low": low, "expected_distance_high": high, "expected_net_distance": net}
    return {name: Reading(value, defined) for name, value in readings.items()}


def distance_formula(rows: Rows, sets: Sets) -> dict[str, Reading]:
    """expected_distance_low alone, for many N.

    It is the published formula of Theorem 1(2) without its epsilon. A kernel takes float32 rows on the CPU, and skips
    what only the other two need. High means that random sets must lie far from the rest on average, low that they need
    not.

    Args:
        rows: a block of attention rows.
        sets: of these rows, from `choose_sets`.

    Returns:
        One reading, (head, query, N), in the unit of the vectors.

    Examples:
        >>> logits = torch.randn(2, 5, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> sets = abbe.measures.choose_sets(rows, (1, 2), torch.Generator().manual_seed(0))
        >>> abbe.measures.distance_formula(rows, sets)["expected_distance_low"].value.shape
        torch.Size([2, 5, 2])
    """
    if rows.fused:
        with suppress(KernelsBrokenError):
            return {"expected_distance_low": Reading(_fused_formula(rows, sets), sets.defined(rows))}
    return {"expected_distance_low": expected_distance(rows, sets)["expected_distance_low"]}


def _fused_formula(rows: Rows, sets: Sets) -> Tensor:
    """In float32: ||mu||^2 cancels only at the few keys near a multiple of z, whose root is negligible in the sum."""
    x, weights = rows.vectors.detach(), rows.weights.detach()
    squares = _squares(x)
    z = torch.bmm(weights.reshape(len(x), -1, rows.keys), x)
    dots = torch.bmm(z, x.mT).view(-1, rows.keys)
    sums = (z.double() ** 2).sum(-1).float().view(-1)
    whole = torch.stack([rows.facts.keys, rows.facts.first, rows.facts.last], -1).flatten(0, 1)
    place = torch.tensor([rows.queries, rows.heads // len(x)])
    sums_of_means = torch.empty(len(dots), len(sets.grid))
    over_rows(
        row_kernel("formula_rows"), len(dots), flat(rows.logits), flat(weights), dots,
        squares.contiguous(), sums, whole, torch.tensor(sets.grid), place, sums_of_means,
    )  # fmt: skip
    return sums_of_means.view(rows.heads, rows.queries, -1)


def _squares(x: Tensor) -> Tensor:
    """||x||^2, (group, key)."""
    squares = (x**2).sum(-1)
    # One check is enough: the maximum is infinite or NaN if one of the squares is.
    if not math.isfinite(float(squares.amax())):
        raise AbbeError("vectors hold NaN, infinity or numbers too large to square")
    return squares


class _Products(NamedTuple):
    """Dot products of the rows of one head. In float64: they may cancel in ||mu||^2, whose root then keeps half of the
    digits; float32 would leave three."""

    visible: Tensor  # (query, key), 1 or 0
    own: Tensor  # (query, key) ||y_i||^2
    with_sum: Tensor  # (query, key) y_i . z
    scatter: Tensor  # (query, key) sum over j != i of ||y_j - m||^2, m the mean of those y_j
    own_sum: Tensor  # (query, 1) Q
    sum_square: Tensor  # (query, 1) ||z||^2
    keys: Tensor  # (query, 1) n


def _products(rows: Rows, head: int, x: Tensor, squares: Tensor) -> _Products:
    """x (key, feature) and their squared lengths, up to the last key that any row sees."""
    a = rows.weights[head, :, : len(x)].detach().double()
    visible = (rows.logits[head, :, : len(x)] != -torch.inf).double()
    z = a @ x
    own, with_sum = a**2 * squares, a * (z @ x.mT)
    own_sum, sum_square = own.sum(-1, keepdim=True), (z**2).sum(-1, keepdim=True)
    n = rows.count[head].double().unsqueeze(-1)
    others = sum_square - 2 * with_sum + own  # ||z - y_i||^2
    scatter = (own_sum - own - others / (n - 1).clamp(min=1)).clamp(min=0)
    return _Products(visible, own, with_sum, scatter, own_sum, sum_square, n)


def _sandwich(products: _Products, size: int) -> Tensor:
    """Low and high, (2, query). Meaningless in rows of `size` keys or fewer."""
    n = products.keys
    c = size / (n - 1).clamp(min=1)
    # mu_i = (1 + c) y_i - c z
    terms = torch.addcmul(c**2 * products.sum_square, products.own, (1 + c) ** 2)
    terms = terms.addcmul_(products.with_sum, -2 * c * (1 + c)).clamp_(min=0)
    # With two keys, the other one is the set: no scatter.
    factor = c * (n - 1 - size).clamp(min=0) / (n - 2).clamp(min=1)
    low = (torch.sqrt(terms) * products.visible).sum(-1)
    high = terms.addcmul_(products.scatter, factor).sqrt_().mul_(products.visible).sum(-1)
    return torch.stack([low, high]) * ((n - size) / n.clamp(min=1)).squeeze(-1)


def _net(products: _Products, size: int) -> Tensor:
    """Root of the mean square, (query,)."""
    n = products.keys
    pairs = (n * (n - 1)).clamp(min=1)
    of_sum, of_own = (n - 2 * size) ** 2 - n, 4 * size * (n - size)
    return torch.sqrt(((of_sum * products.sum_square + of_own * products.own_sum) / pairs).clamp(min=0)).squeeze(-1)
