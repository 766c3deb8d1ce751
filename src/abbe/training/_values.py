"""From the sums of a step to the values of its heads, their summaries by layer and model, and their JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..measures import State, compute
from ..results import packed, unpacked
from ._quantities import QUANTITIES, tracker_name
from ._reading import PARTS

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
_Parts = tuple[Tensor, Tensor | None, Tensor | None]  # value, limit and control of the heads of one layer

_PLACES = {quantity.name: place for place, quantity in enumerate(QUANTITIES)}
_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "mean": lambda x: math.fsum(x) / len(x),
    "max": max,
}
_NOT_MEANS = ("max_logit", "sensitivity_worst_max", "logit_change", *(f"{part}_gradient" for part in PARTS))


def values_of(states: Mapping[int, State]) -> Values:
    """Every measure of every head of one step, in the order of the quantities."""
    layers = [_of_layer(state) for _, state in sorted(states.items())]
    heads = [len(next(iter(layer.values()))[0]) for layer in layers]
    names = {name: None for layer in layers for name in layer}
    ordered = sorted(names, key=lambda name: _PLACES[name.partition("@")[0]])
    return {name: _measured([layer.get(name) for layer in layers], heads) for name in ordered}


def _of_layer(state: State) -> dict[str, _Parts]:
    means = {name: x for name, x in state.items() if name.rpartition("/")[0] not in _NOT_MEANS}
    measures: dict[str, _Parts] = {name: (x.value, x.limit, x.control) for name, x in compute(means).items()}
    for name in ("max_logit", "sensitivity_worst_max"):
        largest = state[f"{name}/largest"]
        measures[name] = torch.where(largest > -torch.inf, largest, torch.nan), None, None
    entries = state["logit_change/entries"]
    if bool((entries > 0).any()):
        change = torch.sqrt(state["logit_change/squares"] / torch.where(entries > 0, entries, torch.nan))
        measures["logit_change"] = change, None, None
        measures["logit_change_max"] = state["logit_change/largest"], None, None
    squares = {part: state[name] for part in PARTS if (name := f"{part}_gradient/squares") in state}
    share = measures["nonfinite"][0]
    for part, square in squares.items():
        norm = square.sqrt()
        measures[f"{part}_gradient"] = norm, None, None
        share = torch.where(norm.isfinite(), share, 1.0)
    measures["nonfinite"] = share, None, None
    if len(squares) == len(PARTS):
        value = squares["value"]
        ratio = torch.sqrt((squares["query"] + squares["key"]) / torch.where(value != 0, value, torch.nan))
        measures["gradient_ratio"] = ratio, None, None
    return measures


def _measured(layers: Sequence[_Parts | None], heads: Sequence[int]) -> Measured:
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
    return _reduced((tracker_name(name), finite_of(measured.value)) for name, measured in values.items())


def _reduced(numbers_of: Iterable[tuple[str, Sequence[float]]]) -> dict[str, float]:
    return {
        f"{name}_{how}": float(reduce(numbers))
        for name, numbers in numbers_of
        if numbers
        for how, reduce in _REDUCTIONS.items()
    }


def tracker_metrics(values: Values) -> dict[str, float]:
    """What a tracker gets: abbe/layer_3/entropy is the mean over its heads, abbe/global/entropy_min over all."""
    metrics = {f"abbe/global/{name}": value for name, value in of_model(values).items()}
    for name, measured in values.items():
        for layer, heads in enumerate(measured.value):
            reduced = _reduced([(tracker_name(name), finite_of([heads]))])
            # The mean has the plain name.
            metrics |= {f"abbe/layer_{layer}/{key.removesuffix('_mean')}": value for key, value in reduced.items()}
    return metrics


def values_as_json(values: Values) -> dict[str, Any]:
    """The part of a step's record that holds its values: heads per layer, and numbers of the model and of heads."""
    return {
        "layout": [len(heads) for heads in values["entropy"].value],
        "model": {name: float(f"{value:.6g}") for name, value in of_model(values).items()},
        "heads": {
            name: {which: packed(grid) for which, grid in vars(measured).items() if grid is not None}
            for name, measured in values.items()
        },
    }


def values_from_json(record: Mapping[str, Any]) -> Values:
    """The values in a record that was read from a folder."""

    def grid(content: Any) -> Grid:
        return [[math.nan if x is None else x for x in heads] for heads in unpacked(content, record["layout"])]

    return {
        name: Measured(**{which: grid(content) for which, content in grids.items()})
        for name, grids in record["heads"].items()
    }
