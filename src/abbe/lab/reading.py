"""Readings of a network at one step: the quantities of the monitor, reduced over heads, for every seed."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from .._float64 import where_double
from ..normalizers import Normalizer
from ..training import Alerts, LayerRows, Measured, Values, measure_layers
from .network import Attention, Seen

SIZE = 4  # of the selected sets whose separability is measured: small tasks have few keys
_SEQUENCES, _ROWS = 4, 16  # read at most
# Name in the tables: quantity of the monitor, and how heads are reduced to one number.
QUANTITIES: dict[str, tuple[str, str]] = {
    "max_logit": ("max_logit", "max"),
    "logit_change": ("logit_change", "max"),
    "max_weight": ("max_weight", "mean"),
    "saturated": ("saturated", "mean"),
    "separability": (f"separability@N={SIZE}", "mean"),
    "sensitivity": ("sensitivity_worst_mean", "mean"),
    "gradient_ratio": ("gradient_ratio", "mean"),
    "query_gradient": ("query_gradient", "mean"),
    "nonfinite": ("nonfinite", "max"),
}
ENTROPY, CONTROL = "entropy_share", "separability_control"
ALL_QUANTITIES = (ENTROPY, *QUANTITIES, CONTROL)


def attentions(network: nn.Module) -> list[Attention]:
    return [part for part in network.modules() if isinstance(part, Attention)]


def watch(network: nn.Module, on: bool) -> None:
    for part in attentions(network):
        part.watched, part.seen = on, None


def snapshot(network: nn.Module) -> list[Seen]:
    """What every attention layer computed in the last forward pass."""
    return [part.seen for part in attentions(network) if part.seen is not None]


class Reader:
    """Reads the seeds of one configuration and keeps the state of their alerts."""

    def __init__(self, network: nn.Module, seeds: int) -> None:
        self._layers = attentions(network)
        self._seeds = seeds
        self._alerts = [Alerts() for _ in range(seeds)]

    def read(self, step: int, before: list[Seen], after: list[Seen], losses: list[float]) -> list[dict[str, Any]]:
        """By seed: its quantities, and the rules that first fired at this step."""
        readings = []
        for seed, values in enumerate(self._values(step, before, after)):
            events = self._alerts[seed].check(step, values, losses[seed])
            readings.append({"values": _reduced(values), "alerts": sorted({event.rule for event in events})})
        return readings

    def _values(self, step: int, before: list[Seen], after: list[Seen]) -> list[Values]:
        """By seed; seeds that share a normalizer are measured at once, as if they were heads."""
        seeds = list(range(self._seeds))
        shared = all(layer.normalizer_of(0) is layer.normalizer_of(seed) for layer in self._layers for seed in seeds)
        groups = [seeds] if shared else [[seed] for seed in seeds]
        return [values for group in groups for values in self._of_group(group, step, before, after)]

    def _of_group(self, seeds: list[int], step: int, before: list[Seen], after: list[Seen]) -> list[Values]:
        layers = [_rows(layer, seeds, one, then) for layer, one, then in zip(self._layers, before, after, strict=True)]
        heads = self._layers[0].settings.heads
        try:
            together = measure_layers(layers, sizes=(SIZE,), step=step, alike=len(seeds))
        except AbbeError:  # weights that are not finite have no measures, but the other seeds do
            if len(seeds) == 1:
                return [{}]
            return [values for seed in seeds for values in self._of_group([seed], step, before, after)]
        return [_part(together, slice(place * heads, (place + 1) * heads)) for place in range(len(seeds))]


def _part(values: Values, heads: slice) -> Values:
    def cut(grid: list[list[float]] | None) -> list[list[float]] | None:
        return None if grid is None else [layer[heads] for layer in grid]

    return {name: Measured(cut(one.value) or [], cut(one.limit), cut(one.control)) for name, one in values.items()}


def _rows(layer: Attention, seeds: list[int], before: Seen, after: Seen) -> LayerRows:
    """Rows of all these seeds side by side: (batch, seed * head, query, ...)."""
    queries = before.logits.shape[-2]
    first = min(1, queries - 1)  # a causal first row sees one key, and every measure of one key is trivial
    rows = torch.linspace(first, queries - 1, min(_ROWS, queries - first)).round().long()  # none of them twice

    def as_heads(x: Tensor, sequences: int | None = _SEQUENCES) -> Tensor:
        return where_double(x[seeds, :sequences]).transpose(0, 1).flatten(1, 2)

    gradients = {
        name: as_heads(tensor.grad, None)
        for name, tensor in (("query", before.query), ("key", before.key), ("value", before.value))
        if tensor.grad is not None
    }
    logits = as_heads(before.logits)[:, :, rows]
    normalizer = _on_same_device(layer.normalizer_of(seeds[0]), logits)
    return LayerRows(logits, as_heads(before.value.detach()), normalizer, gradients, as_heads(after.logits)[:, :, rows])


def _on_same_device(normalizer: Normalizer, logits: Tensor) -> Normalizer:
    """The normalizer, copied if its logits are elsewhere: those of a device without float64 are read on the CPU."""
    if all(parameter.device == logits.device for parameter in (*normalizer.parameters(), *normalizer.buffers())):
        return normalizer
    return copy.deepcopy(normalizer).to(logits.device)


def _reduced(values: Values) -> dict[str, float | None]:
    numbers: dict[str, float | None] = dict.fromkeys(ALL_QUANTITIES)
    for name, (quantity, how) in QUANTITIES.items():
        if quantity in values:
            numbers[name] = _over_heads(values[quantity].value, how)
    if values:
        entropy = values["entropy"]
        assert entropy.limit is not None
        shares = [
            [x / most if most > 0 else math.nan for x, most in zip(heads, limits, strict=True)]
            for heads, limits in zip(entropy.value, entropy.limit, strict=True)
        ]
        numbers[ENTROPY] = _over_heads(shares, "mean")
        separability = values.get(QUANTITIES["separability"][0])
        if separability is not None and separability.control is not None:
            numbers[CONTROL] = _over_heads(separability.control, "mean")
    return numbers


def _over_heads(grid: list[list[float]], how: str) -> float | None:
    finite = [x for heads in grid for x in heads if math.isfinite(x)]
    if not finite:
        return None
    value = max(finite) if how == "max" else math.fsum(finite) / len(finite)
    return float(f"{value:.6g}")
