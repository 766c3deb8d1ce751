"""From queries and keys to weights: grouped heads, soft cap, hidden keys, and sinks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..normalizers import Normalizer
from .blocks import Hidden, Inputs


def grouped_scores(q: Tensor, k: Tensor) -> Tensor:
    """(..., H, Lq, D) x (..., Hkv, Lk, D) -> (..., H, Lq, Lk)."""
    return unfold_heads(fold_heads(q, k.shape[-3]) @ k.mT, q.shape[-3])


def fold_heads(t: Tensor, kv_heads: int) -> Tensor:
    """(..., H, Lq, X) -> (..., Hkv, H/Hkv * Lq, X)."""
    heads, queries, width = t.shape[-3:]
    return t if heads == kv_heads else t.reshape(*t.shape[:-3], kv_heads, heads // kv_heads * queries, width)


def unfold_heads(t: Tensor, heads: int) -> Tensor:
    """(..., Hkv, H/Hkv * Lq, X) -> (..., H, Lq, X)."""
    kv_heads, rows, width = t.shape[-3:]
    return t if heads == kv_heads else t.reshape(*t.shape[:-3], heads, kv_heads * rows // heads, width)


def soft_cap(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def logits_of(scores: Tensor, inputs: Inputs, hidden: Hidden) -> Tensor:
    """(..., H, Lq, Lk) with -inf at hidden keys; with a sink (..., H, Lq, 1 + Lk). May write into the scores."""
    if inputs.bias is not None:
        scores = scores + inputs.bias.to(scores.dtype)
    for keys, table in hidden:
        scores[..., keys].masked_fill_(table, -math.inf)
    if inputs.mask is not None:
        scores = scores.masked_fill(~inputs.mask, -math.inf)
    return scores if inputs.sink is None else with_sink(scores, inputs.sink)


def with_sink(logits: Tensor, sink: Tensor) -> Tensor:
    """(..., H, Lq, 1 + Lk): the logit of the sink per head (H,), or per query (H, Lq), before those of the keys."""
    column = sink.to(logits.dtype).reshape(len(sink), -1, 1)
    return torch.cat([column.expand(*logits.shape[:-1], 1), logits], -1)


def beside_sink(normalizer: Normalizer, logits: Tensor, sink: Tensor | None) -> Tensor:
    """The weights of the keys; a sink is one extra key, which takes its share of the weight."""
    weights: Tensor = normalizer(logits if sink is None else with_sink(logits, sink))
    return weights if sink is None else weights[..., 1:].contiguous()


def normalize(normalizer: Normalizer, logits: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """The weights, with these values of the normalizer's parameters."""
    # Backward must see the same values as forward, and a caller's functional_call replaces them in forward only.
    names = (name for name, _ in normalizer.named_parameters())
    values = dict(zip(names, parameters, strict=True))
    weights: Tensor = torch.func.functional_call(normalizer, values, logits) if values else normalizer(logits)
    return weights
