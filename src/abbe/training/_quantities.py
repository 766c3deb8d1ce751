"""What a monitor measures: the declared quantities, and from the sums of a step to their values, summaries and JSON.

Tables in documents and pages come from the declarations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_DIGITS = 6  # of every number in a record
PARTS = ("query", "key", "value")  # of an attention call, whose gradients are measured
SATURATED = 0.99  # a row with a larger weight is saturated: softmax's derivative is below 0.01 there


@dataclass(frozen=True)
class Quantity:
    """What a monitor measures.

    Attributes:
        name: in tables.
        label: for people.
        unit: of its values.
        meaning: what high and low mean.
        limit: what bounds it; empty if nothing does.
        control: what it is compared with; empty if nothing is.
    """

    name: str
    label: str
    unit: str
    meaning: str
    limit: str = ""
    control: str = ""


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
             "tight, from the range of the logits; for softmax only", "1/n"),
    Quantity("sink_mass", "weight on the first key", "weight",
             "high means that the first visible key serves as a sink, low that it does not",
             "that of the largest weight", "1/n"),
    Quantity("separability", "separability N_s/N", "share",
             "high (1) means that a ball up to the nearest other token holds all of the selected, low few", "",
             "random set"),
    Quantity("sensitivity_worst_mean", "sensitivity, worst direction: mean", "weight per logit",
             "high means that some small change of the logits moves the weights a lot, low that none does",
             "Lipschitz constant; 1/2 for softmax"),
    Quantity("sensitivity_worst_max", "sensitivity, worst direction: largest row", "weight per logit",
             "high means that a row is easily moved, low that none is", "Lipschitz constant; 1/2 for softmax"),
    Quantity("saturated", f"rows with a weight above {SATURATED:g}", "share",
             "high means that the normalizer passes hardly any gradient to the logits, low that it does"),
    *(Quantity(f"{part}_gradient", f"gradient norm of the {parts}", f"loss per {part}",
               f"high means that the loss changes with the {parts}, low that the head learns nothing by them")
      for part, parts in (("query", "queries"), ("key", "keys"), ("value", "values"))),
    Quantity("gradient_ratio", "gradient of queries and keys over that of values", "ratio",
             "high means that the head learns where to look, low that it only learns what to copy"),
    Quantity("nonfinite", "rows with NaN or infinite logits or values; 1 for a gradient that is not finite", "share",
             "high means that numbers overflowed, low (0) that all are finite"),
    Quantity("learned", "learned value of the normalizer", "value",
             "high means what it means for the option (a high alpha: sparse weights), low the opposite"),
)  # fmt: skip


def list_quantities() -> tuple[Quantity, ...]:
    """Everything that a monitor measures of a head: its unit, limit and control, and what high and low mean.

    Returns:
        One entry each, in the order of the tables. A set size follows the name after "@": "separability@N=20", and so
        does the option of a normalizer that is learned: "learned@alpha".

    Examples:
        >>> quantity = abbe.training.list_quantities()[0]
        >>> quantity.name, quantity.unit, quantity.meaning
        ('entropy', 'nats', 'high means that the weight is spread over many keys, low that few hold it')
    """
    return QUANTITIES


def tracker_name(measure: str) -> str:
    """A measure as trackers name it: "separability_20" for "separability@N=20", "learned_alpha" for "learned@alpha"."""
    return measure.replace("@N=", "_").replace("@", "_")


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

    def shares(self) -> Grid:
        """Shares of the limit; NaN where it is 0, or there is none."""
        pairs = [zip(heads, limits, strict=True) for heads, limits in zip(self.value, self.limit or (), strict=False)]
        return [[x / most if most > 0 else math.nan for x, most in heads] for heads in pairs]


Values = dict[str, Measured]


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
    reduced: dict[str, float] = {}
    for name, measured in values.items():
        if numbers := finite_values(measured.value):
            ends = {"min": min(numbers), "mean": math.fsum(numbers) / len(numbers), "max": max(numbers)}
            reduced |= {f"{tracker_name(name)}_{how}": float(x) for how, x in ends.items()}
    return reduced


def tracker_metrics(values: Values) -> dict[str, float]:
    """What a tracker gets: abbe/layer_3/entropy is the mean over its heads, abbe/global/entropy_min over all."""
    metrics = {f"abbe/global/{name}": value for name, value in reduce_heads(values).items()}
    for name, measured in values.items():
        for layer, heads in enumerate(measured.value):
            reduced = reduce_heads({name: Measured([heads])})
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


def packed(grid: Sequence[Sequence[float]]) -> Any:
    """Numbers by layer and head for JSON: a single one if all are the same; None for NaN and infinity."""
    layers = [[float(f"{x:.{_DIGITS}g}") if math.isfinite(x) else None for x in heads] for heads in grid]
    first = layers[0][0] if layers and layers[0] else None
    if all(x == first for heads in layers for x in heads):
        return first
    return [heads[0] if heads and all(x == heads[0] for x in heads) else heads for heads in layers]


def unpacked(content: Any, layout: Sequence[int]) -> list[list[float | None]]:
    """The inverse of `packed`, for layers of this many heads; None where nothing was measured."""
    if not isinstance(content, list):
        return [[content] * heads for heads in layout]
    return [x if isinstance(x, list) else [x] * heads for x, heads in zip(content, layout, strict=True)]


def values_from_json(record: Mapping[str, Any]) -> Values:
    """The values in a record that was read from a folder."""

    def grid(content: Any) -> Grid:
        return [[math.nan if x is None else x for x in heads] for heads in unpacked(content, record["layout"])]

    return {
        name: Measured(**{which: grid(content) for which, content in grids.items()})
        for name, grids in record["heads"].items()
    }
