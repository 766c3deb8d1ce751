"""What is read of a network at one step: the quantities of the monitor, reduced over heads, for every seed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ..._errors import AbbeError
from ...training import Alerts, LayerRows, Values, measure_layers
from .network.attention import Attention, Seen

SIZE = 4  # of the selected sets whose separability is measured: small tasks have few keys
_SEQUENCES, _ROWS = 8, 16  # that are read, at most
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
    """What every attention layer saw in the forward pass that is just over."""
    return [part.seen for part in attentions(network) if part.seen is not None]


class Reader:
    """Reads the seeds of one configuration and keeps the state of their alerts."""

    def __init__(self, network: nn.Module, seeds: int) -> None:
        self._network = network
        self._alerts = [Alerts() for _ in range(seeds)]

    def read(self, step: int, before: list[Seen], after: list[Seen], losses: list[float]) -> list[dict[str, Any]]:
        """By seed: its quantities, and the rules that fired first at this step."""
        return [self._of_seed(seed, step, before, after, loss) for seed, loss in enumerate(losses)]

    def _of_seed(self, seed: int, step: int, before: list[Seen], after: list[Seen], loss: float) -> dict[str, Any]:
        layers = [
            _rows(layer, seed, one, then)
            for layer, one, then in zip(attentions(self._network), before, after, strict=True)
        ]
        try:
            values = measure_layers(layers, sizes=(SIZE,), step=step)
        except AbbeError:  # weights that are not finite have no measures
            values = {}
        events = self._alerts[seed].check(step, values, loss) if values else []
        return {"values": _reduced(values), "alerts": sorted({event.rule for event in events})}


def _rows(layer: Attention, seed: int, before: Seen, after: Seen) -> LayerRows:
    queries = before.logits.shape[-2]
    # The last rows see most keys; a causal first row sees one.
    rows = torch.linspace(min(1, queries - 1), queries - 1, min(_ROWS, queries)).round().long()
    part = slice(0, _SEQUENCES)
    gradients = {
        name: tensor.grad[seed]
        for name, tensor in (("query", before.query), ("key", before.key), ("value", before.value))
        if tensor.grad is not None
    }
    return LayerRows(
        before.logits[seed][part, :, rows],
        before.value.detach()[seed][part],
        layer.normalizer_of(seed),
        gradients,
        after.logits[seed][part, :, rows],
    )


def _reduced(values: Values) -> dict[str, float | None]:
    numbers: dict[str, float | None] = dict.fromkeys(ALL_QUANTITIES)
    for name, (quantity, how) in QUANTITIES.items():
        if quantity in values:
            numbers[name] = _over_heads(values[quantity].value, how)
    if values:
        entropy = values["entropy"]
        assert entropy.limit is not None
        shares = [
            [x / most if most > 0 else math.nan for x, most in zip(heads, ceilings, strict=True)]
            for heads, ceilings in zip(entropy.value, entropy.limit, strict=True)
        ]
        numbers[ENTROPY] = _over_heads(shares, "mean")
        control = values[QUANTITIES["separability"][0]].control if QUANTITIES["separability"][0] in values else None
        numbers[CONTROL] = None if control is None else _over_heads(control, "mean")
    return numbers


def _over_heads(grid: list[list[float]], how: str) -> float | None:
    finite = [x for heads in grid for x in heads if math.isfinite(x)]
    if not finite:
        return None
    value = max(finite) if how == "max" else math.fsum(finite) / len(finite)
    return float(f"{value:.6g}")
