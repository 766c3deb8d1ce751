"""How many keys a swapped model needs: the least N so that its N largest weights alone cost little.

The cost is always that over the loss of the model's own attention: a worse one must not earn a smaller N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ...models import LoadedModel, plan
from ...normalizers import Normalizer, Truncated, normalizer

Points = dict[int, list[float]]  # for N: the loss of every window


def truncated_swap(model: LoadedModel, what: str, keep: int) -> dict[str, Normalizer]:
    """What to swap so that every head of `what` keeps its `keep` largest weights; others are softmax."""
    rules: dict[str, Normalizer] = {}
    for path, groups in plan(model, what).items():
        for group in groups:
            heads = ",".join(str(head) for head in group.heads)
            rules[f"{path}.heads.{heads}"] = Truncated(group.normalizer or normalizer("softmax"), keep)
    return rules


def capacity_points(
    losses_with: Callable[[int], Sequence[float]], full: Tensor, own: Tensor, counts: Tensor, tau: float, longest: int
) -> Points:
    """Losses at those powers of two that a search for the rise of `tau` over own's loss needs.

    The rise is taken to fall with N. None are needed where the loss with all keys, `full`, is already above it. Every
    row of `counts` (resample, window) crosses between two neighbours that were tried, so that no end of an interval is
    cut off: the search goes on downwards until N fails in all of them or is 1, and upwards until N holds in all.
    """
    if not _rise(full.tolist(), own) <= tau:
        return {}
    grid = [2**k for k in range(longest.bit_length()) if 2**k < longest]
    points: Points = {}

    def tried(place: int) -> list[float]:
        if grid[place] not in points:
            points[grid[place]] = list(losses_with(grid[place]))
        return points[grid[place]]

    least = _least_place(lambda place: _rise(tried(place), own) <= tau, len(grid))
    below, above = least - 1, least
    while below > 0 and bool(_holds(tried(below), own, counts, tau).any()):
        below -= 1
        tried(below)
    while above < len(grid) and not bool(_holds(tried(above), own, counts, tau).all()):
        above += 1
    return dict(sorted(points.items()))


def _least_place(holds: Callable[[int], bool], places: int) -> int:
    """By bisection; `places` if none holds: with all keys nothing is left out."""
    low, high = 0, places
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _holds(losses: Sequence[float], own: Tensor, counts: Tensor, tau: float) -> Tensor:
    """Whether the rise is allowed, (resample,)."""
    return counts @ torch.tensor(losses, dtype=torch.float64) / (counts @ own) - 1 <= tau


def _rise(losses: Sequence[float], own: Tensor) -> float:
    return float(torch.tensor(losses, dtype=torch.float64).mean() / own.mean()) - 1


def capacity(
    points: Mapping[int, Sequence[float]], full: Tensor, own: Tensor, counts: Tensor, tau: float, longest: int
) -> Tensor:
    """N at which the mean loss is `tau` above own's, for every row of `counts` (resample, window): (resample,).

    Between two N that were measured ln N is taken along a straight line of the rise; below 1 it is 1. Infinite
    where all keys, with the losses `full`, are not enough; 0 where it lies below all that were tried, nobody knows how
    far; NaN where a loss is not finite.
    """
    sizes = [*points, longest]
    losses = [*(torch.tensor(found, dtype=torch.float64) for found in points.values()), full]
    table = torch.stack([counts @ found / (counts @ own) - 1 for found in losses], -1)
    return torch.tensor([_crossing(sizes, row, tau) for row in table.tolist()], dtype=torch.float64)


def _crossing(sizes: Sequence[int], rises: Sequence[float], tau: float) -> float:
    """The least N from which on all rises are at most tau, found backwards."""
    if not all(math.isfinite(rise) for rise in rises):
        return math.nan
    if rises[-1] > tau:
        return math.inf
    for place in range(len(sizes) - 2, -1, -1):
        if rises[place] > tau:
            share = (rises[place] - tau) / (rises[place] - rises[place + 1])
            return math.exp(math.log(sizes[place]) + share * math.log(sizes[place + 1] / sizes[place]))
    return 1.0 if sizes[0] == 1 else 0.0
