"""The separable share of a row's weight, by loops: the oracle of tests."""

from __future__ import annotations

import math


def plain_separable(weights: list[float], seen: list[int], vectors: list[list[float]], size: int) -> float | None:
    """None where it is not defined."""
    total = sum(weights)
    if len(seen) < 2 or total <= 0:
        return None
    order = sorted(seen, key=lambda key: -weights[key])
    chosen = order[: min(size, len(seen) - 1)]
    points = {key: [weights[key] * part for part in vectors[key]] for key in seen}
    centre = [sum(points[key][f] for key in chosen) for f in range(len(vectors[0]))]
    nearest = min(math.dist(points[key], centre) for key in order[len(chosen) :])
    return sum(weights[key] for key in chosen if math.dist(points[key], centre) < nearest - 1e-13) / total
