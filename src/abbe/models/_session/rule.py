"""The rule of an attention module: the normalizers that its heads compute with, and attention by it.

What is special: one function answers for a swap, for a model that was loaded with its plan and for one that names its
normalizer. A tap, a swap or a monitor that is opened on top computes by this rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..._attention.engine import are_finite, can_read
from ..._errors import AbbeError
from ...normalizers import Normalizer, kernels_from, normalizer, step_attention, usual_specs
from .call import (
    AttentionCall,
    HeadGroup,
    RawCall,
    Rule,
    key_heads,
    model_attention,
    normalized_attention,
    take,
    take_of_each,
)
from .modules import CARRIED_NAME, LOADED_PREFIX, base_name, configs_within

SWAPPED = "abbe_normalizers"  # part of a swapped network that holds the normalizers
GROUPS = "abbe_groups"  # of an attention module that was loaded with a plan: the normalizers of its heads
_swapped: WeakKeyDictionary[nn.Module, Rule] = WeakKeyDictionary()  # by the swaps that are open


def standing_rule(module: nn.Module, heads: int) -> Rule | None:
    """The rule that an attention module computes with now; None for the model's own softmax."""
    if (rule := _swapped.get(module)) is not None:
        return rule
    name = base_name(getattr(module, "config", None)) or ""
    if name == CARRIED_NAME:
        carried: Rule | None = module.__dict__.get(GROUPS)
        return carried
    return _named_rule(name, heads) if name.startswith(LOADED_PREFIX) else None


def rule_of(call: RawCall) -> Rule | None:
    """The rule by which a module computes a call now: that of a swap, of its folder or name, or of the call itself."""
    return in_full(standing_rule(call.module, call.query.shape[1]), call)


def in_full(rule: Rule | None, call: RawCall) -> Rule | None:
    """A rule in which heads that keep the module's own attention have the normalizer of the call."""
    if rule is None or call.rule is None:
        return rule or call.rule
    own = call.rule[0].normalizer
    of_some = any(one.normalizer is None and len(one.heads) < call.query.shape[1] for one in rule)
    if own is not None and of_some and any(part._given.get("heads", 1) > 1 for part in parts_of(own)):
        raise AbbeError(f"{call.where} computes with {own}, which has a value for each head: swap all of them, or none")
    return tuple(replace(one, normalizer=one.normalizer or own) for one in rule)


def has_rule(network: nn.Module) -> bool:
    """Whether some module of a network may compute with anything but the model's own softmax."""
    named = any((base_name(config) or "").startswith(LOADED_PREFIX) for config in configs_within(network))
    return named or is_swapped(network)


def is_swapped(network: nn.Module) -> bool:
    return any(module in _swapped for module in network.modules())


def put_rules(rules: Mapping[nn.Module, Rule], undo: ExitStack) -> None:
    """Modules have these rules until `undo` closes."""
    for module, rule in rules.items():
        put(_swapped, module, rule, undo)


def put(held: MutableMapping[Any, Any], key: object, value: object, undo: ExitStack) -> None:
    """Set an entry until `undo` closes; then it is as before."""
    before = held.get(key)
    held[key] = value
    undo.callback(held.pop, key, None) if before is None else undo.callback(held.__setitem__, key, before)


@lru_cache(maxsize=256)
def _named_rule(name: str, heads: int) -> Rule:
    return (HeadGroup("*", tuple(range(heads)), normalizer(usual_specs()[name.removeprefix(LOADED_PREFIX)])),)


# One token has this many logits in a text of some hundred, and generation calls often: loading the kernels pays off.
KERNELS_FROM = 1 << 11


def attention_by(call: RawCall, rule: Rule | None) -> Tensor:
    """(batch, queries, heads, value width): what a module with this rule computes; None is the model's own softmax."""
    if rule is None or rule is call.rule:
        return model_attention(call)
    if call.mask is None and not call.causal and call.query.shape[-2] > 1:  # whatever the module declares
        refuse_order(rule, f"but {call.where} shows all keys")
    with kernels_from(KERNELS_FROM):
        return _attention(call, rule)


def _attention(call: RawCall, groups: Rule) -> Tensor:
    if len(groups) == 1 and groups[0].normalizer is not None:
        if _is_plain_step(call):
            output = _one_query(groups[0].normalizer, call.query, call.key, call.value, call.mask, call.options.scale)
            # NaN may come from a masked key, which counts as absent there; reading the output costs little.
            if call.mask is None or are_finite(output):
                return output
        return normalized_attention(groups[0].normalizer, call)
    own: Tensor | None = None
    if any(group.normalizer is None for group in groups):
        # All heads, as in the model: the result for some heads alone would be rounded differently.
        own = model_attention(call)
        if len(groups) == 1:
            return own
    parts = [_of_group(call, group, own) for group in groups]
    order = [head for group in groups for head in group.heads]
    together = torch.cat(parts, 2)
    return together if order == sorted(order) else together[:, :, sorted(range(len(order)), key=order.__getitem__)]


def _of_group(call: RawCall, group: HeadGroup, own: Tensor | None) -> Tensor:
    where, module, query, key, value, mask, causal, options = call[:8]
    heads = group.heads
    if group.normalizer is None and own is not None:
        return take(own, heads, 2)
    shared = key_heads(heads, query.shape[1] // key.shape[1])
    query, key, value = take(query, heads, 1), take(key, shared, 1), take(value, shared, 1)
    sink = None if options.sink is None else take(options.sink, heads, 0)
    options = replace(options, sink=sink, position_bias=take_of_each(options.position_bias, heads))
    part = RawCall(where, module, query, key, value, take_of_each(mask, heads), causal, options)
    return normalized_attention(group.normalizer or "softmax", part)


def _is_plain_step(call: RawCall) -> bool:
    """Whether this is one token with nothing special, as in most steps of a generation."""
    query, mask, options = call.query, call.mask, call.options
    if query.shape[-2] != 1 or query.dtype not in (torch.float32, torch.float64) or torch.is_grad_enabled():
        return False
    bare = options.softcap is None and options.sink is None and options.position_bias is None and not options.dropout
    plain_mask = mask is None or (mask.dtype == torch.bool and can_read(query))
    return bare and plain_mask and not torch.is_autocast_enabled(query.device.type)


def _one_query(
    normalizer: Normalizer, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """As normalized_attention, in a third of the calls: with one query they cost more than the arithmetic."""
    if mask is None and (output := step_attention(normalizer, query, key, value, scale)) is not None:
        return output
    batch, heads, _, width = query.shape
    key, value = key.flatten(0, 1), value.flatten(0, 1)
    folded = query.reshape(len(key), -1, width)
    scores = torch.baddbmm(folded.new_empty(1), folded, key.mT, beta=0, alpha=scale).view(batch, heads, 1, -1)
    if mask is not None:
        scores = scores.masked_fill_(~mask, -math.inf)
    weights = normalizer(scores).view(len(key), -1, key.shape[1])
    return torch.bmm(weights, value).view(batch, 1, heads, -1)


def first_weights(call: AttentionCall, queries: Tensor) -> Tensor:
    """(heads, len(queries), keys): the weights of batch element 0, without gradients and before dropout."""
    tensors = {name: getattr(call, name) for name in ("query", "key", "value", "mask", "position_bias")}
    first: dict[str, Any] = {name: tensor[:1] for name, tensor in tensors.items() if tensor is not None}
    return replace(call, **first).weights(queries)[0]


def refuse_order(rule: Rule, why: str) -> None:
    """Refuse keys without order for normalizers that need it."""
    for group in rule:
        if needs_order(group.normalizer):
            raise AbbeError(f"{group.normalizer} needs keys in causal order, {why}")


def needs_order(whole: Normalizer | None) -> bool:
    return whole is not None and any(part.needs_order for part in parts_of(whole))


def parts_of(whole: Normalizer) -> Iterator[Normalizer]:
    """Itself, and the normalizers within it."""
    return (part for part in whole.modules() if isinstance(part, Normalizer))
