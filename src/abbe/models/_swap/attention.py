"""Which normalizer each head gets: patterns and specs, resolved for one model.

What is special: a spec creates one normalizer per layer, with separate parameters for each head if it learns, while a
Normalizer instance is used as it is wherever its pattern matches. A head that no pattern names keeps the model's own
attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from ..._attention.engine import are_finite, can_read
from ..._errors import AbbeError
from ...normalizers import Normalizer, Softmax, kernels_from, normalizer, parse_spec, step_attention, usual_specs
from .._session.call import (
    Attend,
    AttentionCall,
    MaskPolicy,
    RawCall,
    attention_function,
    is_causal,
    is_lower_triangle,
    model_attention,
    normalized_attention,
)
from .._session.modules import CARRIED_NAME, LOADED_PREFIX
from .layers import EVERY, Layer, matches, rules_in

What = str | Normalizer | Mapping[str, str | Normalizer]


@dataclass(frozen=True, eq=False)
class HeadGroup:
    """Heads of one layer that share a normalizer.

    Attributes:
        pattern: that chose them.
        heads: their numbers, from 0.
        normalizer: None is the model's own attention.
    """

    pattern: str
    heads: tuple[int, ...]
    normalizer: Normalizer | None


Groups = dict[Layer, tuple[HeadGroup, ...]]


def make_groups(what: What, layers: Sequence[Layer]) -> Groups:
    """The groups of every layer, together all its heads."""
    what = rules_in(what) if isinstance(what, str) else what
    rules = what if isinstance(what, Mapping) else {EVERY: what}
    if not rules:
        raise AbbeError("there is no pattern; write {'*': 'entmax:alpha=1.5'}, or the spec alone")
    free = {layer: set(range(layer.heads)) for layer in layers}
    groups: dict[Layer, list[HeadGroup]] = {layer: [] for layer in layers}
    for pattern, wanted in rules.items():
        used = False
        for layer, named in matches(pattern, layers).items():
            heads = tuple(head for head in named if head in free[layer])
            if heads:
                groups[layer].append(HeadGroup(pattern, heads, _normalizer(wanted, heads, layer)))
                free[layer].difference_update(heads)
                used = True
        if not used and pattern != EVERY:
            raise AbbeError(f"pattern {pattern!r} has no effect: those before it name all of its heads; put it first")
    for layer in layers:
        if free[layer]:
            groups[layer].append(HeadGroup("", tuple(sorted(free[layer])), None))
    return {layer: tuple(groups[layer]) for layer in layers}


def _normalizer(wanted: str | Normalizer, heads: Sequence[int], layer: Layer) -> Normalizer:
    chosen = normalizer(wanted) if not isinstance(wanted, str) else for_heads(wanted, len(heads)).to(layer.device)
    check_fits(chosen, heads, layer)
    return chosen


def for_heads(spec: str, heads: int) -> Normalizer:
    """The normalizer of a spec; parameters that learn get a value per head, unless the spec says heads=."""
    plain, (name, settings) = normalizer(spec), parse_spec(spec)
    options = {option.name: option for option in plain.options}
    filled: dict[str, Any] = {
        key: for_heads(settings.get(key, option.default), heads)
        for key, option in options.items()
        if option.kind == "normalizer"
    }
    if "heads" in options and "heads" not in settings and (plain.always_learns or plain._given.get("learn")):
        filled["heads"] = heads
    return normalizer(name, **(settings | filled)) if filled else plain


def check_fits(whole: Normalizer, heads: Sequence[int], layer: Layer) -> None:
    for part in _parts(whole):
        if part._given.get("heads", 1) not in (1, len(heads)):
            raise AbbeError(
                f"{whole} is made for {part._given['heads']} heads, but is to serve {len(heads)} heads of "
                f"{layer.path}; leave heads= out"
            )
        if part.needs_order and not layer.causal:
            raise AbbeError(
                f"{whole} needs keys in causal order, and {layer.path} has none: "
                "it is an encoder's or a cross attention"
            )


def needs_order(whole: Normalizer | None) -> bool:
    return whole is not None and any(part.needs_order for part in _parts(whole))


def _parts(whole: Normalizer) -> Iterable[Normalizer]:
    return (part for part in whole.modules() if isinstance(part, Normalizer))


def as_module(groups_of: Groups) -> nn.ModuleDict:
    """All normalizers by the number of their layer, as the network holds them during the swap."""
    return nn.ModuleDict(
        {
            str(layer.number): nn.ModuleList([group.normalizer for group in groups if group.normalizer is not None])
            for layer, groups in groups_of.items()
            if any(group.normalizer is not None for group in groups)
        }
    )


# One token has this many logits in a text of some hundred, and generation calls often: loading the kernels pays off.
KERNELS_FROM = 1 << 11


def swapped_attention(call: RawCall, groups: Sequence[HeadGroup]) -> Tensor:
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
    return together if order == sorted(order) else together[:, :, _once(_inverse, tuple(order))]


def _of_group(call: RawCall, group: HeadGroup, own: Tensor | None) -> Tensor:
    where, module, query, key, value, mask, causal, options = call
    heads = group.heads
    if group.normalizer is None and own is not None:
        return _take(own, heads, 2)
    shared = _once(key_heads, heads, query.shape[1] // key.shape[1])
    query, key, value = _take(query, heads, 1), _take(key, shared, 1), _take(value, shared, 1)
    sink = None if options.sink is None else _take(options.sink, heads, 0)
    options = replace(options, sink=sink, position_bias=_of_heads(options.position_bias, heads))
    part = RawCall(where, module, query, key, value, _of_heads(mask, heads), causal, options)
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


def swapped_weights(call: AttentionCall, groups: Sequence[HeadGroup], queries: Tensor) -> Tensor:
    """(heads, len(queries), keys): the weights of batch element 0, without gradients and before dropout."""
    with torch.no_grad():
        first = replace(
            call, query=call.query[:1], key=call.key[:1], value=call.value[:1],
            mask=None if call.mask is None else call.mask[:1],
            position_bias=None if call.position_bias is None else call.position_bias[:1],
        )  # fmt: skip
        logits = first.logits(queries, sink=True)[0]
        weights = torch.empty_like(logits)
        for group in groups:
            normalizer = group.normalizer or Softmax()
            weights[list(group.heads)] = normalizer(logits[list(group.heads)])
        return weights[..., -call.key.shape[-2] :]


def check_order(call: RawCall, groups: Sequence[HeadGroup]) -> None:
    """Refuse a normalizer that needs causal order where all queries see all keys, whatever the module declares."""
    if call.mask is None and not call.causal and call.query.shape[-2] > 1:
        for group in groups:
            if needs_order(group.normalizer):
                raise AbbeError(f"{group.normalizer} needs keys in causal order, but {call.where} shows all keys")


@lru_cache(maxsize=1024)
def _kept(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def _once(function: Callable[..., Any], *args: Any) -> Any:
    """function(*args), cached; torch.compile warns of a cache, and keeps the result in its graph."""
    return function(*args) if torch.compiler.is_compiling() else _kept(function, *args)


def key_heads(heads: tuple[int, ...], shared_by: int) -> tuple[int, ...]:
    """The key heads for these query heads: each once if all serve equally many, else one per query head."""
    each = [head // shared_by for head in heads]
    distinct = sorted(set(each))
    counts = {each.count(head) for head in distinct}
    return tuple(distinct) if len(counts) == 1 else tuple(each)


def _inverse(order: tuple[int, ...]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _of_heads(table: Tensor | None, heads: tuple[int, ...]) -> Tensor | None:
    """The part of a mask or bias (batch, 1 or heads, queries, keys)."""
    return table if table is None or table.shape[1] == 1 else _take(table, heads, 1)


def _take(states: Tensor, heads: tuple[int, ...], axis: int) -> Tensor:
    """Some heads; a view where they are neighbours."""
    if heads[-1] - heads[0] + 1 == len(heads):
        return states.narrow(axis, heads[0], len(heads))
    return states.index_select(axis, torch.tensor(heads, device=states.device))


GROUPS = "abbe_groups"  # of an attention module that was loaded with a plan: the normalizers of its heads


def attention_names() -> dict[str, str]:
    """The names for transformers' attn_implementation, such as "abbe:entmax-1.5", each with its spec.

    Returns:
        Specs by name.

    Examples:
        >>> abbe.models.attention_names()["abbe:entmax-1.5"]
        'entmax:alpha=1.5'
    """
    return {f"{LOADED_PREFIX}{name}": spec for name, spec in usual_specs().items()}


def register_attention_names() -> None:
    """Make the names of `attention_names` known to transformers; importing both packages does it.

    Examples:
        >>> abbe.models.register_attention_names()
        >>> from transformers import AttentionInterface
        >>> "abbe:sparsemax" in AttentionInterface()
        True
    """
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    # torch.compile cannot follow transformers' table of models.
    is_eager = torch.compiler.assume_constant_result(_is_eager)  # type: ignore[no-untyped-call]
    make_mask = MaskPolicy(set(), (), lambda config: is_eager(type(config))).make_mask
    attends = {name: _attend_with(spec) for name, spec in attention_names().items()}
    for name, attend in (attends | {CARRIED_NAME: _attend_with_plan}).items():
        function = attention_function(
            lambda module: type(module).__name__,
            lambda module, query, mask, options: mask is not None and is_lower_triangle(mask),
            attend,
        )
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, make_mask)


def _is_eager(config: type[Any]) -> bool:
    """Whether transformers computes models with this class of config eagerly unless told otherwise."""
    from transformers import MODEL_MAPPING

    known = next((MODEL_MAPPING[kind] for kind in config.__mro__ if kind in MODEL_MAPPING), None)
    model = known[0] if isinstance(known, (tuple, list)) else known
    return model is not None and not model._supports_sdpa


def _attend_with(spec: str) -> Attend:
    return lambda call: _attend(call, (HeadGroup("*", tuple(range(call.query.shape[1])), _cached_normalizer(spec)),))


def _attend_with_plan(call: RawCall) -> Tensor:
    """Attention with the normalizers that the module was loaded with."""
    groups = call.module.__dict__.get(GROUPS)
    if groups is None:
        raise AbbeError(
            f"{call.where} has no plan: load the model with from_pretrained, from the folder that `abbe export` wrote"
        )
    for group in groups:
        if group.normalizer is not None:
            group.normalizer.to(call.query.device)  # normalizers are no part of the network, which may have moved
    return _attend(call, groups)


def _attend(call: RawCall, groups: tuple[HeadGroup, ...]) -> Tensor:
    causal = is_causal(call.module)
    for group in groups:
        if needs_order(group.normalizer) and not causal:
            raise AbbeError(
                f"{group.normalizer} needs keys in causal order, and {call.where} is an encoder's or a cross attention"
            )
    if call.mask is None and call.query.shape[-2] > 1 and causal:
        raise AbbeError(
            f"unsupported: {call.where} came without a mask, so later keys would be seen; use abbe.swap instead"
        )
    with kernels_from(KERNELS_FROM):
        return swapped_attention(call._replace(mask=None) if call.causal else call, groups)


_cached_normalizer = lru_cache(maxsize=256)(normalizer)
