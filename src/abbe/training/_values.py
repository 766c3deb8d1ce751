"""From the sums of a step to the values of its heads, and from those to layers and to the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..measures import State, compute
from ._gradients import PARTS
from ._quantities import QUANTITIES, tracker_name

Grid = list[list[float]]  # by layer and head; NaN where nothing was measured


@dataclass(frozen=True)
class Measured:
    """One measure of all heads, by layer and head; NaN where nothing was measured.

    Attributes:
        value: that was measured.
        limit: that is proved, or None.
        control: of a random set or a uniform head, or None.
    """

    value: Grid
    limit: Grid | None = None
    control: Grid | None = None


Values = dict[str, Measured]

_PLACES = {quantity.name: place for place, quantity in enumerate(QUANTITIES)}
_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "mean": lambda x: math.fsum(x) / len(x),
    "max": max,
}


def values_of(states: Mapping[int, State]) -> Values:
    """Every measure of every head of one step, in the order of the quantities."""
    layers = [_of_layer(state) for _, state in sorted(states.items())]
    names = {name: None for layer in layers for name in layer}
    ordered = sorted(names, key=lambda name: _PLACES[name.partition("@")[0]])
    heads = [_heads(layer) for layer in layers]
    return {name: _measured([layer.get(name) for layer in layers], heads) for name in ordered}


def _of_layer(state: State) -> dict[str, tuple[Tensor, Tensor | None, Tensor | None]]:
    means = {name: x for name, x in state.items() if name.rpartition("/")[0] not in _OTHER}
    measures = {name: (mean.value, mean.limit, mean.control) for name, mean in compute(means).items()}
    for name in ("max_logit", "sensitivity_worst_max"):
        largest = state[f"{name}/largest"]
        measures[name] = torch.where(largest > -torch.inf, largest, torch.nan), None, None
    entries = state["logit_change/entries"]
    change = torch.sqrt(state["logit_change/squares"] / torch.where(entries > 0, entries, torch.nan))
    if bool((entries > 0).any()):
        measures["logit_change"] = change, None, None
        measures["logit_change_max"] = state["logit_change/largest"], None, None
    measures |= _gradients(state)
    share = measures["nonfinite"][0]
    for part in PARTS:
        if (name := f"{part}_gradient") in measures:
            share = torch.where(measures[name][0].isfinite(), share, 1.0)
    measures["nonfinite"] = share, None, None
    return measures


_OTHER = ("max_logit", "sensitivity_worst_max", "logit_change", *(f"{part}_gradient" for part in PARTS))


def _gradients(state: State) -> dict[str, tuple[Tensor, None, None]]:
    squares = {part: state[name] for part in PARTS if (name := f"{part}_gradient/squares") in state}
    norms = {f"{part}_gradient": (square.sqrt(), None, None) for part, square in squares.items()}
    if len(squares) == len(PARTS):
        value = squares["value"]
        ratio = torch.sqrt((squares["query"] + squares["key"]) / torch.where(value != 0, value, torch.nan))
        norms["gradient_ratio"] = ratio, None, None
    return norms


def _heads(layer: Mapping[str, tuple[Tensor, Tensor | None, Tensor | None]]) -> int:
    return len(next(iter(layer.values()))[0])


def _measured(layers: Sequence[tuple[Tensor, Tensor | None, Tensor | None] | None], heads: Sequence[int]) -> Measured:
    def grid(place: int) -> Grid | None:
        parts = [None if layer is None else layer[place] for layer in layers]
        if all(part is None for part in parts):
            return None
        return [[math.nan] * n if x is None else x.tolist() for x, n in zip(parts, heads, strict=True)]

    value = grid(0)
    assert value is not None
    return Measured(value, grid(1), grid(2))


def finite_of(grid: Grid) -> list[float]:
    return [x for layer in grid for x in layer if math.isfinite(x)]


def of_model(values: Values) -> dict[str, float]:
    """Least, mean and largest of every measure over all heads.

    Args:
        values: every measure by name.

    Returns:
        Numbers by name: entropy_min, entropy_mean, entropy_max and so on.

    Examples:
        >>> abbe.training.of_model({"entropy": abbe.training.Measured([[1.0, 2.0], [3.0, 4.0]])})
        {'entropy_min': 1.0, 'entropy_mean': 2.5, 'entropy_max': 4.0}
    """
    reduced: dict[str, float] = {}
    for name, measured in values.items():
        reduced |= _reduced(tracker_name(name), finite_of(measured.value))
    return reduced


def _reduced(name: str, numbers: Sequence[float]) -> dict[str, float]:
    if not numbers:
        return {}
    return {f"{name}_{how}": float(reduce(numbers)) for how, reduce in _REDUCTIONS.items()}


def tracker_metrics(values: Values) -> dict[str, float]:
    """What a tracker gets: abbe/layer_3/entropy is the mean over its heads, abbe/global/entropy_min over all."""
    metrics = {f"abbe/global/{name}": value for name, value in of_model(values).items()}
    for name, measured in values.items():
        for layer, heads in enumerate(measured.value):
            for key, value in _of_heads(tracker_name(name), heads).items():
                metrics[f"abbe/layer_{layer}/{key}"] = value
    return metrics


def _of_heads(name: str, heads: Sequence[float]) -> dict[str, float]:
    """Mean under the plain name, least and largest beside it."""
    reduced = _reduced(name, [x for x in heads if math.isfinite(x)])
    return {key.removesuffix("_mean"): value for key, value in reduced.items()}
