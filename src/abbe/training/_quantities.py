"""What a monitor measures: the declared quantities, and from the sums of a step to their values, summaries and JSON.

Tables in documents and pages come from the declarations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..measures import State, compute
from ..results import Quantity, packed, unpacked

PARTS = ("query", "key", "value")  # of an attention call, whose gradients are measured
SATURATED = 0.99  # a row with a larger weight is saturated: softmax's derivative is below 0.01 there

QUANTITIES = (
    Quantity("entropy", "entropy", "nats", "high means that the weight is spread over many keys, low that few hold it",
             "ln n, n the visible keys"),
    Quantity("effective_tokens", "effective tokens", "tokens",
             "high means that many keys share the weight, low (1) that one has it", "n"),
    Quantity("max_logit", "largest logit", "logits",
             "high means that the scores have grown, low that the weights cannot be sharp"),
    Quantity("logit_change", "change of the logits by the update", "logits (root mean square)",
             "high means that one step moves attention a lot, low that it hardly does"),
    Quantity("logit_change_max", "largest change of a logit by the update", "logits",
             "high means that one step moves some score a lot, low that it moves none"),
    Quantity("max_weight", "largest weight", "weight", "high means that one key stands out, low that none does",
             "tight, from the range of the logits", "1/n"),
    Quantity("sink_mass", "weight on the first key", "weight",
             "high means that the first visible key serves as a sink, low that it does not",
             "that of the largest weight", "1/n"),
    Quantity("separability", "separability N_s/N", "share",
             "high (1) means that a ball up to the nearest other token holds all of the selected, low few", "",
             "random set"),
    Quantity("sensitivity_worst_mean", "sensitivity, worst direction: mean", "weight per logit",
             "high means that some small change of the logits moves the weights a lot, low that none does",
             "Lipschitz constant, 1/2"),
    Quantity("sensitivity_worst_max", "sensitivity, worst direction: largest row", "weight per logit",
             "high means that a row is easily moved, low that none is", "Lipschitz constant, 1/2"),
    Quantity("saturated", f"rows with a weight above {SATURATED:g}", "share",
             "high means that softmax passes hardly any gradient to the logits, low that it does"),
    Quantity("query_gradient", "gradient norm of the queries", "loss per query",
             "high means that the loss changes with the queries, low that the head learns nothing by them"),
    Quantity("key_gradient", "gradient norm of the keys", "loss per key",
             "high means that the loss changes with the keys, low that the head learns nothing by them"),
    Quantity("value_gradient", "gradient norm of the values", "loss per value",
             "high means that the loss changes with the values, low that the head learns nothing by them"),
    Quantity("gradient_ratio", "gradient of queries and keys over that of values", "ratio",
             "high means that the head learns where to look, low that it only learns what to copy"),
    Quantity("nonfinite", "rows with NaN or infinite logits or values; 1 for a gradient that is not finite", "share",
             "high means that numbers overflowed, low (0) that all are finite"),
)  # fmt: skip


def list_quantities() -> tuple[Quantity, ...]:
    """Everything that a monitor measures of a head: its unit, limit and control, and what high and low mean.

    Returns:
        One entry each, in the order of the tables. A set size follows the name after "@": "separability@N=20".

    Examples:
        >>> quantity = abbe.training.list_quantities()[0]
        >>> quantity.name, quantity.unit, quantity.meaning
        ('entropy', 'nats', 'high means that the weight is spread over many keys, low that few hold it')
    """
    return QUANTITIES


def tracker_name(measure: str) -> str:
    """A measure as trackers name it: "separability_20" for "separability@N=20"."""
    return measure.replace("@N=", "_")


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

_ORDER = {quantity.name: position for position, quantity in enumerate(QUANTITIES)}
_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "mean": lambda x: math.fsum(x) / len(x),
    "max": max,
}
_NOT_MEANS = ("max_logit", "sensitivity_worst_max", "logit_change", *(f"{part}_gradient" for part in PARTS))


def values_of(states: Mapping[int, State]) -> Values:
    """Every measure of every head of one step, in the order of the quantities."""
    layers = [_layer_measures(state) for _, state in sorted(states.items())]
    heads = [len(next(iter(layer.values()))[0]) for layer in layers]
    names = {name: None for layer in layers for name in layer}
    ordered = sorted(names, key=lambda name: _ORDER[name.partition("@")[0]])
    return {name: _measured([layer.get(name) for layer in layers], heads) for name in ordered}


def _layer_measures(state: State) -> dict[str, _Parts]:
    means = {name: x for name, x in state.items() if name.rpartition("/")[0] not in _NOT_MEANS}
    measures: dict[str, _Parts] = {name: (x.value, x.limit, x.control) for name, x in compute(means).items()}
    plain: dict[str, Tensor] = {}  # without limit and control
    for name in ("max_logit", "sensitivity_worst_max"):
        largest = state[f"{name}/largest"]
        plain[name] = torch.where(largest > -torch.inf, largest, torch.nan)
    entries = state["logit_change/entries"]
    if bool((entries > 0).any()):
        plain["logit_change"] = torch.sqrt(state["logit_change/squares"] / torch.where(entries > 0, entries, torch.nan))
        plain["logit_change_max"] = state["logit_change/largest"]
    squares = {part: state[name] for part in PARTS if (name := f"{part}_gradient/squares") in state}
    plain["nonfinite"] = measures["nonfinite"][0]
    for part, square in squares.items():
        plain[f"{part}_gradient"] = norm = square.sqrt()
        plain["nonfinite"] = torch.where(norm.isfinite(), plain["nonfinite"], 1.0)
    if len(squares) == len(PARTS):
        value = torch.where(squares["value"] != 0, squares["value"], torch.nan)
        plain["gradient_ratio"] = torch.sqrt((squares["query"] + squares["key"]) / value)
    return measures | {name: (x, None, None) for name, x in plain.items()}


def _measured(layers: Sequence[_Parts | None], heads: Sequence[int]) -> Measured:
    def grid(which: int) -> Grid | None:
        parts = [None if layer is None else layer[which] for layer in layers]
        if all(part is None for part in parts):
            return None
        return [[math.nan] * n if x is None else x.tolist() for x, n in zip(parts, heads, strict=True)]

    value = grid(0)
    assert value is not None
    return Measured(value, grid(1), grid(2))


def finite_values(grid: Grid) -> list[float]:
    """All finite numbers of all layers and heads."""
    return [x for layer in grid for x in layer if math.isfinite(x)]


def reduce_heads(values: Values) -> dict[str, float]:
    """Least, mean and largest of every measure over all heads.

    Args:
        values: every measure by name.

    Returns:
        Numbers by name: entropy_min, entropy_mean, entropy_max and so on.

    Examples:
        >>> abbe.training.reduce_heads({"entropy": abbe.training.Measured([[1.0, 2.0], [3.0, 4.0]])})
        {'entropy_min': 1.0, 'entropy_mean': 2.5, 'entropy_max': 4.0}
    """
    return _reduced((tracker_name(name), finite_values(measured.value)) for name, measured in values.items())


def _reduced(named_numbers: Iterable[tuple[str, Sequence[float]]]) -> dict[str, float]:
    return {
        f"{name}_{how}": float(reduce(numbers))
        for name, numbers in named_numbers
        if numbers
        for how, reduce in _REDUCTIONS.items()
    }


def tracker_metrics(values: Values) -> dict[str, float]:
    """What a tracker gets: abbe/layer_3/entropy is the mean over its heads, abbe/global/entropy_min over all."""
    metrics = {f"abbe/global/{name}": value for name, value in reduce_heads(values).items()}
    for name, measured in values.items():
        for layer, heads in enumerate(measured.value):
            reduced = _reduced([(tracker_name(name), finite_values([heads]))])
            # The mean has the plain name.
            metrics |= {f"abbe/layer_{layer}/{key.removesuffix('_mean')}": value for key, value in reduced.items()}
    return metrics


def values_as_json(values: Values) -> dict[str, Any]:
    """The part of a step's record that holds its values: heads per layer, and numbers of the model and of heads."""
    return {
        "layout": [len(heads) for heads in values["entropy"].value],
        "model": {name: float(f"{value:.6g}") for name, value in reduce_heads(values).items()},
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
