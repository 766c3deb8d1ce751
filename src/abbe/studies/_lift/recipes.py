"""From the scan to plans: nested sets of layers in the order of harm per gain, and which of them to tune further."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .settings import LOSS, LiftSettings

Layers = tuple[int, ...]
_LEAST_GAIN = 1e-6  # below, harm over gain would be noise over noise
_MARGIN = 0.5  # of the allowed loss: the upper end on the part to choose on should stay below


@dataclass(frozen=True)
class Cell:
    """One candidate in a single group of layers."""

    layers: Layers
    spec: str
    harm: float  # relative rise of the loss
    gain: float  # what the goal wants more of, per layer


@dataclass(frozen=True)
class Tried:
    """A plan with its numbers on the part to choose on.

    The rise of the loss is that over the baseline or over its control, whichever is larger; if the goal is the loss,
    over the baseline.
    """

    name: str
    recipe: tuple[tuple[int, str], ...]
    steps: int
    rise: float
    rise_high: float  # upper end of the interval
    gain: float


def layer_groups(layers: int, most: int) -> list[Layers]:
    """At most so many groups of neighbouring layers, as equal in size as possible."""
    count = min(layers, most)
    edges = [round(place * layers / count) for place in range(count + 1)]
    return [tuple(range(first, last)) for first, last in pairwise(edges)]


def price(cell: Cell, goal: str) -> float:
    """Harm per gain, the cheapest first; if the goal is the loss, only the harm."""
    if goal == LOSS:
        return cell.harm
    if cell.gain <= _LEAST_GAIN:
        return math.inf
    # A harm below 0 is luck of the windows or a true gain; dividing it would put the smallest gains first.
    return cell.harm / cell.gain if cell.harm > 0 else cell.harm * cell.gain


def nested_recipes(cells: Sequence[Cell], goal: str) -> list[dict[int, str]]:
    """For each candidate the cheapest group, the cheapest two, ...; then the same with each group's best candidate."""
    specs = list(dict.fromkeys(cell.spec for cell in cells))
    rows = [[cell for cell in cells if cell.spec == spec] for spec in specs]
    if len(specs) > 1:
        by_group: dict[Layers, list[Cell]] = {}
        for cell in cells:
            by_group.setdefault(cell.layers, []).append(cell)
        rows.append([min(some, key=lambda cell: price(cell, goal)) for some in by_group.values()])
    recipes: list[dict[int, str]] = []
    for row in rows:
        recipe: dict[int, str] = {}
        for cell in sorted(row, key=lambda one: (price(one, goal), one.layers)):
            if math.isinf(price(cell, goal)):
                break
            recipe = recipe | dict.fromkeys(cell.layers, cell.spec)
            if recipe not in recipes:
                recipes.append(recipe)
    return recipes


def thinned(recipes: Sequence[dict[int, str]], most: int) -> list[dict[int, str]]:
    """At most so many, evenly over the list: every candidate keeps small and large sets."""
    if len(recipes) <= most:
        return list(recipes)
    return [recipes[round((place + 0.5) * len(recipes) / most - 0.5)] for place in range(most)]


def for_next_round(tried: Sequence[Tried], count: int, settings: LiftSettings, slack: float) -> list[Tried]:
    """So many plans for the next round.

    Tuning regains part of the loss, and nobody knows beforehand how much. So there is a ladder of allowed rises, from
    the final limit to `slack` times that limit, and each rung sends the plan of largest gain.
    """
    if settings.goal == LOSS:
        return _lowest(tried, count)
    chosen: list[Tried] = []
    for rung in range(count):
        allowed = settings.max_loss * slack ** (rung / max(1, count - 1))
        left = [one for one in tried if one not in chosen]
        affordable = [one for one in left if one.rise <= allowed]
        if affordable:
            chosen.append(max(affordable, key=lambda one: (one.gain, -one.rise)))
        elif left:
            chosen.append(min(left, key=lambda one: (one.rise, one.name)))
    return chosen


def _lowest(tried: Sequence[Tried], count: int) -> list[Tried]:
    """Those of least loss; before the first tuning, half of them with the most layers, where there is most to tune."""
    lowest = sorted(tried, key=lambda one: (one.rise, one.name))
    if any(one.steps for one in tried):
        return lowest[:count]
    largest = sorted(tried, key=lambda one: (-len(one.recipe), one.rise, one.name))[: count - count // 2]
    return [*largest, *(one for one in lowest if one not in largest)][:count]


def best(tried: Sequence[Tried], settings: LiftSettings) -> Tried:
    """The plan to judge: the largest gain within the allowed loss, else the least loss."""
    if settings.goal == LOSS:
        return min(tried, key=lambda one: (one.rise, one.name))
    gaining = [one for one in tried if one.gain > 0 and one.rise <= settings.max_loss]
    # The best of many looks better than it is: a plan at the very edge would not hold on other text.
    for allowed in (_MARGIN * settings.max_loss, settings.max_loss, math.inf):
        if affordable := [one for one in gaining if one.rise_high <= allowed]:
            return max(affordable, key=lambda one: (one.gain, -one.rise))
    return min(tried, key=lambda one: (one.rise, one.name))
