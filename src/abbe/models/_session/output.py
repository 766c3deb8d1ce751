"""The output of a tapped or swapped layer, in lean memory, with gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..._attention.attend import attention
from ...normalizers import Normalizer
from .call import HIDDEN
from .keywords import Keywords


def model_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, options: Keywords
) -> Tensor:
    """(batch, queries, heads, value width): the model's own softmax, as transformers' SDPA function computes it."""
    if options.softcap is not None or options.sink is not None:  # transformers' function has neither
        return normalized_attention("softmax", query, key, value, mask, causal, options)
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    output: Tensor = sdpa_attention_forward(
        module, query, key, value, mask, dropout=options.dropout, scaling=options.scale, is_causal=causal,
        position_bias=options.position_bias,
    )[0]  # fmt: skip
    return output


def normalized_attention(
    normalizer: str | Normalizer, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool,
    options: Keywords,
) -> Tensor:  # fmt: skip
    """(batch, queries, heads, value width) with this normalizer and all else that the model asks for."""
    bias = options.position_bias
    if causal:
        # The first query sits at the first key, whatever follows in a static cache; abbe.attention aligns the last.
        length = query.shape[-2]
        key, value, bias = key[:, :, :length], value[:, :, :length], None if bias is None else bias[..., :length]
    if mask is not None and mask.dtype != torch.bool:
        bias, mask = mask if bias is None else bias + mask, mask > HIDDEN
    output = attention(
        query, key, value, normalizer, mask=mask, causal=causal, scale=options.scale, softcap=options.softcap,
        sink=options.sink, position_bias=bias, dropout=options.dropout,
    )  # fmt: skip
    return output.transpose(1, 2).contiguous()
