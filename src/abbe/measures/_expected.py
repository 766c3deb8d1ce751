"""Measures that read whole rows: proved bounds on the mean distance, and finite differences at several temperatures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from .. import bounds
from .._errors import AbbeError
from .._kernels.switch import KernelsBrokenError, load
from .._kernels.threads import over_rows
from ._rows import Rows, flat
from ._sensitivity import directions, short
from ._sets import Sets
from ._state import Reading


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
        load("abbe.measures._kernels.rows", "formula_rows"), len(dots), flat(rows.logits), flat(weights), dots,
        squares.contiguous(), sums, whole, torch.tensor(sets.grid), place, sums_of_means,
    )  # fmt: skip
    return sums_of_means.view(rows.heads, rows.queries, -1)


def _squares(x: Tensor) -> Tensor:
    """||x||^2, (group, key)."""
    squares = (x**2).sum(-1)
    if not bool(torch.isfinite(squares).all()):
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


def differences(
    rows: Rows, temperatures: Sequence[float], steps: Sequence[float], generator: torch.Generator
) -> dict[str, Reading]:
    """How far softmax moves when the logits take a step of a given length, over that length.

    difference_random takes a uniform random direction on the visible keys (the heads of a query share its draw);
    difference_pair pushes the second largest logit up and the largest down, each by eps/sqrt 2, and is 0 in a row of
    one key. The limit is the supremum over all rows and directions, below min{1/(2T), sqrt 2/eps}. High means that such
    a step moves the weights a lot, low that it hardly does.

    Args:
        rows: of softmax, with or without a learned sink: its logit takes part but does not move, and its weight is not
            part of the difference.
        temperatures: T > 0, all different.
        steps: eps > 0 in logits, all different.
        generator: of the directions; drawn from query by query, so that any blocks give the same numbers.

    Returns:
        Readings "difference_random@T=0.1,eps=0.001" and the like, weight per logit.

    Examples:
        >>> logits = torch.randn(2, 5, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> readings = abbe.measures.differences(rows, [1.0], [0.1], torch.Generator().manual_seed(0))
        >>> sorted(readings)
        ['difference_pair@T=1,eps=0.1', 'difference_random@T=1,eps=0.1']
    """
    temperatures, steps = _checked("temperatures", temperatures), _checked("steps", steps)
    if not (rows.softmax or rows.sink):
        raise AbbeError("differences are measured for softmax only, with or without a sink: give softmax or sink rows")
    lengths = _lengths(rows, temperatures, steps, directions(rows, generator))
    defined = rows.count > 0
    readings: dict[str, Reading] = {}
    for i, t in enumerate(temperatures):
        for j, step in enumerate(steps):
            limit = (bounds.change_bound_by_norm(step, t) / step).to(defined.device)
            for direction, length in zip(("random", "pair"), lengths[i, j], strict=True):
                value = torch.where(defined, length / step, 0.0)
                name = f"difference_{direction}@T={short(t)},eps={short(step)}"
                readings[name] = Reading(value, defined, limit.expand(defined.shape), quantiles=True)
    return readings


def _checked(name: str, values: Sequence[float]) -> tuple[float, ...]:
    for x in values:
        if not isinstance(x, int | float) or isinstance(x, bool) or not 0 < x < math.inf:
            raise AbbeError(f"{name} must be positive finite numbers, got {x!r}")
    numbers = tuple(float(x) for x in values)
    if len(set(numbers)) < len(numbers):
        raise AbbeError(f"{name} must be different numbers, got {list(numbers)}")
    return numbers


def _lengths(rows: Rows, temperatures: Sequence[float], steps: Sequence[float], random: Tensor) -> Tensor:
    """||softmax((l + eps u)/T) - softmax(l/T)||, (temperature, step, direction, head, query)."""
    shape = (len(temperatures), len(steps), 2, rows.heads, rows.queries)
    ratios = torch.empty(shape, dtype=torch.float64, device=rows.logits.device)
    with torch.no_grad():
        for head, row in enumerate(_heads(rows, random)):  # one at a time stays in the cache
            for i, t in enumerate(temperatures):
                scaled = row.logits / t
                weights, top = torch.softmax(scaled, -1), _top_two(row, scaled)
                for j, step in enumerate(steps):
                    ratios[i, j, 0, head] = _moved(row, scaled, weights, step / t)
                    ratios[i, j, 1, head] = _exchanged(top, step / t)
    return ratios


class _Head(NamedTuple):
    """The rows of one head in float64, (query, key); a sink is one more column at the end."""

    logits: Tensor  # minus the largest: exact where it matters, also at a low temperature
    direction: Tensor  # unit vectors on the visible keys, 0 elsewhere
    first: Tensor  # (query, 1) position of the largest logit, the sink among them
    pair: Tensor  # (query, 2) positions of the largest and the second largest logit of a key
    both: Tensor  # (query,) there are two visible keys
    keys: int  # columns without the sink


def _heads(rows: Rows, random: Tensor) -> Iterator[_Head]:
    sinks = _sink_logits(rows) if rows.sink else None
    for head in range(rows.heads):
        logits = rows.logits[head].detach().double()
        visible = logits != -torch.inf
        direction = torch.where(visible, random.double(), 0.0)
        length = direction.norm(dim=-1, keepdim=True)
        direction = direction / torch.where(length > 0, length, 1.0)
        first = logits.argmax(-1, keepdim=True)
        second = logits.scatter(-1, first, -torch.inf).argmax(-1, keepdim=True)
        if sinks is not None:
            logits = torch.cat([logits, sinks[head].unsqueeze(-1)], -1)
            direction = torch.nn.functional.pad(direction, (0, 1))
        top, place = logits.max(-1, keepdim=True)
        logits = logits - torch.where(top == -torch.inf, 0.0, top)
        pair = torch.cat([first, second], -1)
        yield _Head(logits, direction, place, pair, visible.sum(-1) > 1, rows.keys)


def _sink_logits(rows: Rows) -> Tensor:
    """(head, query): those of the rows, or from the sink's weight relative to the largest."""
    if rows.sink_logits is not None:
        return rows.sink_logits.detach().double().unsqueeze(-1).expand(rows.logits.shape[:2])
    top, facts = rows.logits.detach().amax(-1).double(), rows.facts
    least = torch.finfo(rows.weights.dtype).tiny  # if the sink took all: weights round to 0
    missing, largest = (1 - facts.total.double()).clamp(min=0), facts.largest.double().clamp(min=least)
    return torch.where(rows.count > 0, top, 0.0) + torch.log(missing) - torch.log(largest)


def _moved(row: _Head, scaled: Tensor, weights: Tensor, step: float) -> Tensor:
    """Length of the difference, (query,), after a step along the direction."""
    change = torch.softmax(torch.add(scaled, row.direction, alpha=step), -1).sub_(weights)
    change.scatter_(-1, row.first, 0.0)
    change.scatter_(-1, row.first, -change.sum(-1, keepdim=True))
    length: Tensor = torch.linalg.vector_norm(change[:, : row.keys], dim=-1)
    return length


class _TopTwo(NamedTuple):
    """The row as the pair direction sees it, each (query,)."""

    first: Tensor  # logarithm of the largest weight
    second: Tensor  # of the second
    rest: Tensor  # of the weight of all others, the sink among them
    share: Tensor  # length of the weights of the others, without the sink, over the weight of them all
    both: Tensor  # there are two keys


def _top_two(row: _Head, scaled: Tensor) -> _TopTwo:
    """In logarithms, because a step may lift a weight that has rounded to 0."""
    others = scaled.scatter(-1, row.pair, -torch.inf)
    logs = torch.cat([scaled.gather(-1, row.pair), others.logsumexp(-1, keepdim=True)], -1)
    first, second, rest = (logs - logs.logsumexp(-1, keepdim=True)).unbind(-1)
    share = torch.linalg.vector_norm(torch.softmax(others, -1)[:, : row.keys], dim=-1)
    return _TopTwo(first, second, rest, torch.where(rest > -torch.inf, share, 0.0), row.both)


def _exchanged(top: _TopTwo, step: float) -> Tensor:
    """Length of the difference, (query,), when the largest logit falls and the second rises by step/sqrt 2.

    With b = step/sqrt 2, u = e^-b, weights p, q, r (largest, second, all others) and Z = p u + q/u + r, the changes
    are (1 - u)/Z times: -p ((1 + u) q/u + r) of the largest, ((1 + u) p + r) q/u of the second, and p - q/u times its
    weight of any other. Numerator and denominator are divided by the largest term of Z, so that nothing overflows.
    """
    b = step / math.sqrt(2)
    terms = torch.stack([top.first - b, top.second + b, top.rest])
    pu, qu, r = torch.exp(terms - terms.amax(0))
    p, rest, u = torch.exp(top.first), torch.exp(top.rest), math.exp(-b)
    of_first, of_second = p * ((1 + u) * qu + r), qu * ((1 + u) * p + rest)
    of_others = top.share * (p * r - rest * qu)
    length = torch.sqrt(of_first**2 + of_second**2 + of_others**2) * -math.expm1(-b) / (pu + qu + r)
    return torch.where(top.both, length, 0.0)
