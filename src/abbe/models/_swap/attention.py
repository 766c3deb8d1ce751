"""One layer's attention with other normalizers: all heads in one call, or group by group."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..._attention.engine import are_finite, can_read
from ..._errors import AbbeError
from ...normalizers import Normalizer, Softmax, step_attention
from .._session.call import AttentionCall
from .._session.raw_call import RawCall, model_attention, normalized_attention
from .groups import HeadGroup, needs_order

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
