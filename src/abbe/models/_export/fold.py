"""Temperatures folded into the weights of queries: which plans are temperatures, which weights they are, the change."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from ...normalizers import Normalizer, Softmax
from .._network import changed
from .._plan import Layer, Plan
from .._session.call import HIDDEN, AttentionCall
from .._tap import Tap


def scales(plan: Plan) -> dict[Layer, Tensor] | None:
    """One factor of the logits per head (float64) by layer; None if a head gets more than a softmax temperature."""
    by_layer: dict[Layer, Tensor] = {}
    for layer, groups in plan.by_layer.items():
        by_layer[layer] = torch.ones(layer.heads, dtype=torch.float64)
        for group in groups:
            if group.normalizer is not None:
                if (factor := _factor(group.normalizer)) is None:
                    return None
                by_layer[layer][list(group.heads)] = factor
    return by_layer


def not_foldable(plan: Plan) -> list[str]:
    """The specs of the plan that are no factor of the logits, each once."""
    normalizers = (group.normalizer for groups in plan.values() for group in groups)
    return sorted({str(one) for one in normalizers if one is not None and _factor(one) is None})


def _factor(normalizer: Normalizer) -> Tensor | None:
    """softmax(factor * logits): one number, or one per head of the group; None if the normalizer is another map."""
    if type(normalizer) is Softmax:
        return torch.tensor([1 / normalizer.temperature], dtype=torch.float64)
    inner = torch.ones(1, dtype=torch.float64) if normalizer.name == "learned-temperature" else None
    if normalizer.name == "scaled" and isinstance(normalizer.of, Normalizer):
        inner = _factor(normalizer.of)
    if inner is None:
        return None
    logarithms: Any = normalizer.t if isinstance(normalizer.t, tuple) else (normalizer.t,)
    return inner * torch.tensor([math.exp(float(one)) for one in logarithms], dtype=torch.float64)


class Changes:
    """The changes of a fold; a parameter that two layers share is refused, since it would be changed twice."""

    def __init__(self) -> None:
        self._tensors: dict[nn.Parameter, tuple[str, Tensor]] = {}
        self.settings: list[tuple[Any, str, object]] = []  # owners, names and new values

    def scale(self, where: str, parameter: nn.Parameter, factor: Tensor) -> None:
        """Multiply; the product is rounded once."""
        self.put(where, parameter, (parameter.detach().double() * factor.to(parameter.device)).to(parameter.dtype))

    def put(self, where: str, parameter: nn.Parameter, value: Tensor) -> None:
        if parameter in self._tensors:
            raise AbbeError(
                f"cannot fold: {where} and {self._tensors[parameter][0]} share one weight, which "
                "cannot be scaled for each of them; leave these layers as they are"
            )
        if not parameter.is_floating_point():
            raise AbbeError(f"cannot fold: weights of {where} are {parameter.dtype}, not floating-point numbers")
        self._tensors[parameter] = where, value

    def applied(self) -> AbstractContextManager[None]:
        """The network with the new values; afterwards every parameter and setting is restored."""
        tensors = ((parameter, "data", value) for parameter, (_, value) in self._tensors.items())
        return changed([*tensors, *self.settings])


# Projections to queries alone, head by head. `q_b_proj` is the second half of a low-rank projection.
_SEPARATE = ("q_b_proj", "q_proj", "query", "q", "q_lin", "q_attn")
# Projections to queries, keys and values together, by the class of the attention module.
_FIRST, _BY_HEAD = "first", "by head"
_TOGETHER = {
    "GPT2Attention": ("c_attn", _FIRST),
    "Phi3Attention": ("qkv_proj", _FIRST),
    "ModernBertAttention": ("Wqkv", _FIRST),
    "GPTNeoXAttention": ("query_key_value", _BY_HEAD),
    "PersimmonAttention": ("query_key_value", _BY_HEAD),
}
_NORMS = ("q_norm", "q_layernorm", "query_layernorm", "q_ln", "query_norm", "qk_norm", "qk_layernorm")
_CLOSE = 1e-5  # of two float32 results of the same formula


def fold_into_queries(changes: Changes, where: str, module: nn.Module, width: int, factors: Tensor) -> None:
    """Multiply the rows of the query projection, and its bias, by the factors of their heads, each of this width."""

    def unknown(why: str) -> AbbeError:
        return AbbeError(f"cannot fold into {type(module).__name__} ({where}): {why}")

    clip = getattr(getattr(module, "config", None), "clip_qkv", None)
    if clip is not None:
        raise AbbeError(f"cannot fold: {where} clips its queries (clip_qkv={clip}), which no scaled projection repeats")
    name = next((name for name in _SEPARATE if isinstance(getattr(module, name, None), nn.Module)), "")
    order = ""
    if not name or (name == "q_attn" and not getattr(module, "is_cross_attention", False)):
        if type(module).__name__ not in _TOGETHER:
            raise unknown("no projection to queries alone has a name that abbe knows")
        name, order = _TOGETHER[type(module).__name__]
    projection = getattr(module, name)
    transposed = type(projection).__name__ == "Conv1D"  # of GPT-2: (input, output), where nn.Linear has the transpose
    if type(projection) is not nn.Linear and not transposed:
        kind = type(projection).__name__
        raise unknown(f"its {name} is a {kind}; merge adapters into the weights, or dequantise it")
    count = int(projection.weight.shape[1 if transposed else 0])
    outputs = factors.repeat_interleave(width)  # the factor of each
    if order == _FIRST:
        outputs = torch.cat([outputs, outputs.new_ones(max(0, count - len(outputs)))])
    elif order == _BY_HEAD:
        outputs = torch.stack([factors, torch.ones_like(factors), torch.ones_like(factors)], 1)
        outputs = outputs.flatten().repeat_interleave(width)
    if count != len(outputs):
        wanted = f"not the {len(outputs)} of {len(factors)} heads of width {width}"
        raise unknown(f"its {name} has {count} outputs, {wanted}")
    changes.scale(where, projection.weight, outputs[None] if transposed else outputs[:, None])
    if getattr(projection, "bias", None) is not None:
        changes.scale(where, projection.bias, outputs)


def fold_into_norm(changes: Changes, where: str, name: str, norm: nn.Module, width: int, factors: Tensor) -> None:
    """Multiply the output of the norm; heads that share its weight need the same factor."""
    parameters = dict(norm.named_parameters())
    weight = parameters.get("weight")
    if weight is None or not parameters.keys() <= {"weight", "bias"} or name.startswith("qk"):
        raise AbbeError(
            f"cannot fold: the queries of {where} go through {name} ({type(norm).__name__}), which undoes any factor "
            "before it and has no weight of theirs alone behind it"
        )
    factor, states = _per_weight(where, name, weight, width, factors), len(factors) * width
    last = width if weight.numel() == width or weight.dim() == 2 else states
    inputs = torch.randn(2, states // last, last, generator=torch.Generator().manual_seed(0))
    wanted = _outcome(norm, inputs) * factor
    for offset in (0.0, 1.0):  # w, or 1 + w
        values = {"weight": ((weight.detach().double() + offset) * factor - offset).to(weight.dtype)}
        if "bias" in parameters:
            values["bias"] = (parameters["bias"].detach().double() * factor).to(weight.dtype)
        trial = copy.deepcopy(norm)
        with torch.no_grad():
            for key, value in values.items():
                dict(trial.named_parameters())[key].copy_(value)
        if torch.allclose(_outcome(trial, inputs), wanted, rtol=_CLOSE, atol=_CLOSE):
            for key, value in values.items():
                changes.put(where, parameters[key], value)
            return
    raise AbbeError(f"cannot fold: how {name} ({type(norm).__name__}) of {where} uses its weight is not known")


def _outcome(norm: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        outcome: Tensor = norm(inputs.to(next(norm.parameters())))
    return outcome.double().cpu()


def _per_weight(where: str, name: str, weight: Tensor, width: int, factors: Tensor) -> Tensor:
    """The factor of each entry of the norm's weight."""
    if weight.numel() == len(factors) * width and len(factors) > 1:
        return factors.repeat_interleave(width).view(weight.shape)
    if weight.numel() != width:
        raise AbbeError(f"cannot fold: {name} of {where} has {weight.numel()} weights for heads of width {width}")
    if not bool((factors == factors[0]).all()):
        raise AbbeError(
            f"cannot fold temperatures per head: the queries of {where} go through {name}, whose weight all heads "
            "share; give all heads of a layer the same temperature"
        )
    return factors[0].repeat(width).view(weight.shape)


_CAP = "attn_logit_softcapping"  # the setting that bounds the scores
Calls = Mapping[str, AttentionCall]  # by path of the layer


def fold(network: Any, factors_of: Mapping[Layer, Tensor], inputs: dict[str, Tensor]) -> Changes:
    """The changes that scale the logits of every head by its factor, exactly."""
    seen: dict[str, AttentionCall] = {}
    with Tap(network) as tap, torch.no_grad():
        tap.listen(lambda call: seen.update({call.name: call}))
        network(**inputs)
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


def _fold_layer(changes: Changes, layer: Layer, factors: Tensor, call: AttentionCall) -> None:
    module, width = layer.module, call.query.shape[-1]
    norms = {name: norm for name in _NORMS if isinstance(norm := getattr(module, name, None), nn.Module)}
    name = next((name for name, norm in norms.items() if not isinstance(norm, nn.Identity)), None)
    if name is not None:
        fold_into_norm(changes, layer.path, name, norms[name], width, factors)
    else:
        fold_into_queries(changes, layer.path, module, width, factors)
    if call.sink is not None:
        sinks = getattr(module, "sinks", None)
        if not isinstance(sinks, nn.Parameter) or sinks.numel() != layer.heads:
            raise AbbeError(f"cannot fold: the sink of {layer.path} is not a separate weight that could be scaled")
        changes.scale(layer.path, sinks, factors.view(sinks.shape))


def _fold_caps(changes: Changes, network: Any, factors_of: Mapping[Layer, Tensor], seen: Calls) -> None:
    capped = [layer for layer in factors_of if layer.path in seen and seen[layer.path].softcap is not None]
    if not capped:
        return
    first, every = capped[0], torch.cat([factors_of[layer] for layer in capped])
    if not bool((every == every[0]).all()):
        raise AbbeError(
            f"cannot fold: {first.path} bounds its scores by a soft cap, one number for all layers, which must be "
            "scaled along; give all heads of all layers the same temperature"
        )
    config = network.config.get_text_config()
    if getattr(config, _CAP, None) != seen[first.path].softcap:
        raise AbbeError(f"cannot fold: where the soft cap of {first.path} is set is not known")
    cap = float(getattr(config, _CAP)) * float(every[0])
    owners = [config, *(layer.module for layer in capped if hasattr(layer.module, _CAP))]
    changes.settings += [(owner, _CAP, cap) for owner in owners]


def _fold_biases(changes: Changes, factors_of: Mapping[Layer, Tensor], seen: Calls) -> None:
    """Scale each table of position biases, if all layers that read it have the same factors."""
    readers: dict[Layer, list[Layer]] = {}
    owner: Layer | None = None
    for layer in factors_of:
        if layer.path not in seen or not _biased(seen[layer.path]):
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


def _biased(call: AttentionCall) -> bool:
    """Whether anything but hidden keys is added to the scores."""
    if call.position_bias is not None and bool((call.position_bias != 0).any()):
        return True
    if call.mask is None or call.mask.dtype == torch.bool:
        return False
    return bool(((call.mask != 0) & (call.mask > HIDDEN)).any())
