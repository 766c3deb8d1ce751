"""The output of a tapped or swapped layer, with little memory, and with gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._attention.attend import attention
from ...normalizers import Normalizer
from .call import HIDDEN
from .keywords import RawCall


def model_attention(call: RawCall) -> Tensor:
    """(batch, queries, heads, value width): the model's own softmax, as transformers' SDPA function computes it."""
    options = call.options
    if options.softcap is not None or options.sink is not None:  # transformers' function has neither
        return normalized_attention("softmax", call)
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    output: Tensor = sdpa_attention_forward(
        call.module, call.query, call.key, call.value, call.mask, dropout=options.dropout, scaling=options.scale,
        is_causal=call.causal, position_bias=options.position_bias,
    )[0]  # fmt: skip
    return output


def normalized_attention(normalizer: str | Normalizer, call: RawCall) -> Tensor:
    """(batch, queries, heads, value width) with this normalizer and all options of the call."""
    _, _, query, key, value, mask, causal, options = call
    bias = options.position_bias
    if causal:
        # The first query sits at the first key, also with a static cache; abbe.attention aligns the last.
        length = query.shape[-2]
        key, value, bias = key[:, :, :length], value[:, :, :length], None if bias is None else bias[..., :length]
    if mask is not None and mask.dtype != torch.bool:
        bias, mask = mask if bias is None else bias + mask, mask > HIDDEN
    output = attention(
        query, key, value, normalizer, mask=mask, causal=causal, scale=options.scale, softcap=options.softcap,
        sink=options.sink, position_bias=bias, dropout=options.dropout,
    )  # fmt: skip
    return output.transpose(1, 2).contiguous()
