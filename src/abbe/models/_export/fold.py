"""Temperatures of softmax as plain weights: the changes in each layer that scale its logits.

What is special: the path of the scores is observed in a pass of the model, not looked up by architecture. Sinks are
scaled along; a soft cap c of scores s is kept by f c tanh(f s / (f c)), which needs one factor everywhere; a position
bias is scaled in its table, on which all layers that share it must agree. A fold that cannot be exact is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from .._session.call import HIDDEN, AttentionCall
from .._swap.layers import Layer
from .._tap import Tap
from .changes import Changes
from .queries import QueryShape, fold_into_norm, fold_into_queries, query_norm

_CAP = "attn_logit_softcapping"  # the setting that bounds the scores


class Seen(NamedTuple):
    """What one layer does with its scores."""

    shape: QueryShape
    sink: bool
    softcap: float | None
    bias: bool


def fold(network: Any, factors_of: Mapping[Layer, Tensor], inputs: dict[str, Tensor]) -> Changes:
    """The changes that scale the logits of every head by its factor, exactly."""
    seen = _see(network, inputs)
    changes = Changes()
    folded = [layer for layer, factors in factors_of.items() if bool((factors != 1).any())]
    for layer in folded:
        if layer.path not in seen:
            raise AbbeError(f"cannot fold: {layer.path} was not called for these tokens")
        _fold_layer(changes, layer, factors_of[layer], seen[layer.path])
    if folded:
        _fold_caps(changes, network, factors_of, seen)
        _fold_biases(changes, factors_of, seen)
    return changes


def _fold_layer(changes: Changes, layer: Layer, factors: Tensor, seen: Seen) -> None:
    module = layer.module
    norm = query_norm(module)
    if norm is not None:
        fold_into_norm(changes, layer.path, *norm, seen.shape, factors)
    else:
        fold_into_queries(changes, layer.path, module, seen.shape, factors)
    if seen.sink:
        sinks = getattr(module, "sinks", None)
        if not isinstance(sinks, nn.Parameter) or sinks.numel() != layer.heads:
            raise AbbeError(f"cannot fold: the sink of {layer.path} is not a separate weight that could be scaled")
        changes.scale(layer.path, sinks, factors.view(sinks.shape))


def _fold_caps(changes: Changes, network: Any, factors_of: Mapping[Layer, Tensor], seen: Mapping[str, Seen]) -> None:
    called = {layer: factors for layer, factors in factors_of.items() if layer.path in seen}
    capped = {layer: factors for layer, factors in called.items() if seen[layer.path].softcap is not None}
    if not capped:
        return
    every = torch.cat(list(capped.values()))
    first = next(iter(capped))
    if not bool((every == every[0]).all()):
        raise AbbeError(
            f"cannot fold: {first.path} bounds its scores by a soft cap, one number for all layers, which must be "
            "scaled along; give all heads of all layers the same temperature"
        )
    config = network.config.get_text_config()
    if getattr(config, _CAP, None) != seen[first.path].softcap:
        raise AbbeError(f"cannot fold: where the soft cap of {first.path} is set is not known")
    cap = float(getattr(config, _CAP)) * float(every[0])
    changes.set(config, _CAP, cap)
    for layer in capped:
        if hasattr(layer.module, _CAP):
            changes.set(layer.module, _CAP, cap)


def _fold_biases(changes: Changes, factors_of: Mapping[Layer, Tensor], seen: Mapping[str, Seen]) -> None:
    """Scale each table of position biases, if all layers that read it have the same factors."""
    readers: dict[Layer, list[Layer]] = {}
    owner: Layer | None = None
    for layer in factors_of:
        if layer.path not in seen or not seen[layer.path].bias:
            continue
        if isinstance(getattr(layer.module, "relative_attention_bias", None), nn.Embedding):
            owner = layer
        if owner is None or _stack(owner.path) != _stack(layer.path):
            raise AbbeError(
                f"cannot fold: {layer.path} adds biases of positions to its scores (as ALiBi does), and where they "
                "come from is not known, so they cannot be scaled along"
            )
        readers.setdefault(owner, []).append(layer)
    for owner, layers in readers.items():
        factors = factors_of[owner]
        if any(not torch.equal(factors, factors_of[layer]) for layer in layers):
            raise AbbeError(
                f"cannot fold: {len(layers)} layers share the position biases of {owner.path}, which must be scaled "
                "along; give each head the same temperature in all of these layers"
            )
        if bool((factors != 1).any()):
            table: Any = owner.module.relative_attention_bias
            changes.scale(owner.path, table.weight, factors[None])


def _stack(path: str) -> str:
    """The path up to the number of the layer: the encoder, or the decoder."""
    return ".".join(takewhile(lambda part: not part.isdigit(), path.split(".")))


@torch.no_grad()
def _see(network: Any, inputs: dict[str, Tensor]) -> dict[str, Seen]:
    """What each layer does with its scores, by its path."""
    seen: dict[str, Seen] = {}

    def look(call: AttentionCall) -> None:
        shape = QueryShape(call.query.shape[1], call.query.shape[-1])
        seen[call.name] = Seen(shape, call.sink is not None, call.softcap, _biased(call))

    with Tap(network) as tap:
        tap.listen(look)
        network(**inputs)
    return seen


def _biased(call: AttentionCall) -> bool:
    """Whether anything but hidden keys is added to the scores."""
    if call.position_bias is not None and bool((call.position_bias != 0).any()):
        return True
    if call.mask is None or call.mask.dtype == torch.bool:
        return False
    return bool(((call.mask != 0) & (call.mask > HIDDEN)).any())
