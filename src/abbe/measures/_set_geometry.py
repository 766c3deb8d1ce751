"""The geometry of sets in a row: what is counted and measured, for the selected and the random sets of all N.

y_i = a_i x_i are the weighted vectors, s the sum over a set, z the sum over the row. `reference_geometry` is the
specification in plain torch; `fused_geometry` gives the same from the kernels, for float32 on the CPU.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from .._errors import AbbeError
from .._kernels.switch import KernelsBrokenError, load
from .._kernels.threads import over_rows
from ._rows import Rows
from ._sets import Sets

_DOTS_AT_ONCE = 1 << 21  # numbers: few enough for the cache, enough to be worth a start of the threads


class SetGeometry(NamedTuple):
    """Of each set, (head, query, N): lengths, and how many keys lie where. Only where the set is defined."""

    distance: Tensor  # sum over the keys outside of ||y_i - s||
    net_distance: Tensor  # ||sum over the keys outside of y_i - s||
    closed: Tensor  # members no farther from s than the nearest key outside
    strict: Tensor  # members nearer to s than that
    intruders: Tensor  # keys outside no farther from s than the farthest member
    closed_cosine: Tensor  # the same three by the cosine of y_i and s
    strict_cosine: Tensor
    intruders_cosine: Tensor


class LimitTerms(NamedTuple):
    """Of the selected sets, (head, query, N): what the bounds on the distances are made of."""

    mass: Tensor  # sum of the weights
    longest: Tensor  # largest ||x|| of a member
    reach: Tensor  # max ||x - z|| over the row plus the same over the members: no two vectors lie farther apart


class RowGeometry(NamedTuple):
    selected: SetGeometry
    random: SetGeometry
    limits: LimitTerms


def row_geometry(rows: Rows, sets: Sets) -> RowGeometry:
    x = rows.vectors.detach().contiguous()
    squares = (x**2).sum(-1)
    # One number tells: a sum of squares is infinite or NaN if one of them is.
    if not math.isfinite(float(squares.amax())):
        raise AbbeError("vectors hold NaN, infinity or numbers too large to square")
    if rows.fused:
        with suppress(KernelsBrokenError):
            return fused_geometry(rows, sets, x, squares)
    return reference_geometry(rows, sets)


def reference_geometry(rows: Rows, sets: Sets) -> RowGeometry:
    heads = [_reference_head(rows, sets, head) for head in range(rows.heads)]
    selected, random, limits = zip(*heads, strict=True)
    return RowGeometry(
        SetGeometry(*(torch.stack(part) for part in zip(*selected, strict=True))),
        SetGeometry(*(torch.stack(part) for part in zip(*random, strict=True))),
        LimitTerms(*(torch.stack(part) for part in zip(*limits, strict=True))),
    )


def _reference_head(rows: Rows, sets: Sets, head: int) -> tuple[SetGeometry, SetGeometry, LimitTerms]:
    a, x, visible = rows.weights[head], rows.group(head), rows.visible[head]
    of_orders = []
    for order in (sets.selected[head], sets.random[head]):
        by_size = [_reference_set(a, x, visible, _members(order, size, visible)) for size in sets.grid]
        of_orders.append(SetGeometry(*(torch.stack(part, -1) for part in zip(*by_size, strict=True))))
    return of_orders[0], of_orders[1], _reference_limits(a, x, visible, sets, sets.selected[head])


def _members(order: Tensor, size: int, visible: Tensor) -> Tensor:
    """Bool (query, key): the first `size` keys of the order."""
    return torch.zeros_like(visible).scatter(-1, order[:, :size], True) & visible


def _reference_set(a: Tensor, x: Tensor, visible: Tensor, inside: Tensor) -> tuple[Tensor, ...]:
    """In float64: keys of little weight lie at almost one distance from s, which float32 would call ties."""
    dtype, a, x = a.dtype, a.double(), x.double()
    outside = visible & ~inside
    y = a.unsqueeze(-1) * x
    s = torch.where(inside.unsqueeze(-1), y, 0.0).sum(-2)
    rest = torch.where(outside.unsqueeze(-1), y, 0.0).sum(-2)
    far = (y - s.unsqueeze(-2)).norm(dim=-1)
    # By x, not by y: two keys with one vector have the same cosine whatever their weights.
    lengths = x.norm(dim=-1) * s.norm(dim=-1, keepdim=True)
    cosine = torch.sign(a) * (x * s.unsqueeze(-2)).sum(-1) / torch.where(lengths > 0, lengths, 1.0)
    alone = inside & (inside.sum(-1, keepdim=True) == 1)  # its sum is itself
    apart = torch.where(alone, torch.where((lengths > 0) & (a != 0), 0.0, 1.0), (1 - cosine).clamp(min=0))
    distance = torch.where(outside, far, 0.0).sum(-1)
    readings = distance, (rest - s).norm(dim=-1), *_ball(far, inside, outside), *_ball(apart, inside, outside)
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
    """By blocks of queries: the sums of the sets, their dot products with all vectors, then one pass a set.

    `x` are the vectors without gaps, `squares` the squares of their lengths.
    All heads go together, because every step that runs on several threads ends with waiting for the slowest.
    """
    shape, sizes = rows.logits.shape[:2], torch.tensor(sets.grid)
    parts = torch.empty(*shape, 2, len(sizes), len(SetGeometry._fields))
    limits = torch.empty(*shape, len(sizes), len(LimitTerms._fields))
    whole = torch.stack([rows.facts.keys, rows.facts.first, rows.facts.last], -1)
    of_rows = (rows.logits.detach(), rows.weights.detach(), whole, sets.selected, sets.random, parts, limits)
    given = _RowArrays(*(x.contiguous().flatten(0, 1) for x in of_rows))
    columns = 2 * len(sizes) + 1
    step = max(1, min(rows.queries, _DOTS_AT_ONCE // (rows.heads * columns * rows.keys)))
    # One room for all blocks: the system would take back and give out so much memory each time.
    room = torch.empty(step * rows.heads * columns * rows.keys)
    for start in range(0, rows.queries, step):
        _fused_block(rows, x, squares, sizes, room, given, start, min(step, rows.queries - start))
    by_set = given.parts.view_as(parts).permute(2, 4, 0, 1, 3)
    of_limits = given.limits.view_as(limits).permute(3, 0, 1, 2)
    return RowGeometry(SetGeometry(*by_set[0]), SetGeometry(*by_set[1]), LimitTerms(*of_limits))


class _RowArrays(NamedTuple):
    """What the kernels read and fill, one row for each (head, query)."""

    logits: Tensor
    weights: Tensor
    whole: Tensor
    selected: Tensor
    random: Tensor
    parts: Tensor
    limits: Tensor


def _fused_block(
    rows: Rows, x: Tensor, squares: Tensor, sizes: Tensor, room: Tensor, given: _RowArrays, start: int, queries: int
) -> None:
    """Fills parts and limits of some queries of all heads. No dot products beyond the last key that they see."""
    groups, columns = len(x), 2 * len(sizes) + 1
    of_block = slice(start, start + queries)
    used = max(1, int(rows.facts.last[:, of_block].max()))
    place = torch.tensor([start, queries, rows.queries, rows.heads // groups])
    sums = torch.empty(rows.heads, queries, columns, x.shape[-1])
    weights = rows.weights.detach()[:, of_block, :used].reshape(groups, -1, used)
    sums[:, :, -1] = torch.bmm(weights, x[:, :used]).view(rows.heads, queries, -1)
    order = (given.whole, given.selected, given.random, sizes)
    flat_sums = sums.view(rows.heads * queries, columns, -1)
    set_sums, set_parts = (load("abbe.measures._kernels.geometry", name) for name in ("set_sums", "set_parts"))
    over_rows(set_sums, len(flat_sums), flat_sums, place, given.weights, x, *order)
    dots = room[: len(flat_sums) * columns * used].view(groups, -1, used)
    torch.bmm(sums.view(groups, -1, x.shape[-1]), x[:, :used].mT, out=dots)
    over_rows(
        set_parts, len(flat_sums), dots.view(-1, columns, used), place, given.logits, given.weights, x,
        squares, *order, flat_sums, given.parts, given.limits,
    )  # fmt: skip
