"""Expected distances: what a uniform random set of N visible keys has on average, in closed form.

y_i = a_i x_i are the weighted vectors, z their sum, Q = sum ||y_i||^2. The mean distance lies between two closed forms
(theorem 1(2) of arXiv 2508.17821, corrected), the mean square of the net distance is exact: see `abbe.bounds`. A single
random set, the control of `distance`, scatters about these means.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from .._errors import AbbeError
from .._kernels.switch import KernelsBrokenError, load
from .._kernels.threads import over_rows
from ._rows import Rows, flat
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
        load("abbe.measures._kernels.expected", "formula_rows"), len(dots), flat(rows.logits), flat(weights), dots,
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
