"""The keyword names of torch's scaled_dot_product_attention, translated to those of `attention`.

What is special: torch aligns is_causal at the first query and the first key, `causal` aligns the last ones. They agree
if there are as many queries as keys; otherwise is_causal becomes a mask.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._errors import AbbeError


class Options(NamedTuple):
    """The options of `attention` under its own names; those with another name in torch come first."""

    mask: Tensor | None = None
    position_bias: Tensor | None = None
    causal: bool = False
    dropout: float = 0.0
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    sink: Tensor | float | None = None


def from_sdpa(
    q: Tensor, k: Tensor, options: Options, attn_mask: Tensor | None, is_causal: bool | None, dropout_p: float | None,
    enable_gqa: bool | None,
) -> Options:  # fmt: skip
    """`options` with those under torch's names; an option under both names is an error."""
    if attn_mask is not None:
        options = _with_mask(options, attn_mask)
    if dropout_p is not None:
        _refuse_both("dropout", options.dropout != 0, "dropout_p")
        options = options._replace(dropout=dropout_p)
    if is_causal is not None:
        _refuse_both("causal", options.causal, "is_causal")
        options = _with_causal(options, is_causal, q, k)
    heads, key_heads = q.shape[-3], k.shape[-3]
    if enable_gqa is False and key_heads not in (1, heads):  # torch broadcasts a single head of keys, too
        raise AbbeError(
            f"enable_gqa is False, but query has {heads} heads and key has {key_heads}: omit it, or set it to True"
        )
    return options


def _with_mask(options: Options, attn_mask: Tensor) -> Options:
    """In a bool mask True = attend, as in ours; a floating one is added to the scores."""
    if isinstance(attn_mask, Tensor) and attn_mask.is_floating_point():
        _refuse_both("position_bias", options.position_bias is not None, "a floating attn_mask")
        return options._replace(position_bias=attn_mask)
    _refuse_both("mask", options.mask is not None, "attn_mask")
    if not isinstance(attn_mask, Tensor) or attn_mask.dtype != torch.bool:
        kind = attn_mask.dtype if isinstance(attn_mask, Tensor) else repr(attn_mask)
        raise AbbeError(f"attn_mask must be a bool tensor (True = attend) or a floating one; got {kind}")
    return options._replace(mask=attn_mask)


def _with_causal(options: Options, is_causal: bool, q: Tensor, k: Tensor) -> Options:
    if not is_causal or q.shape[-2] == k.shape[-2]:
        return options._replace(causal=is_causal)
    visible = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    return options._replace(mask=visible if options.mask is None else options.mask & visible)


def _refuse_both(name: str, is_set: bool, torch_name: str) -> None:
    if is_set:
        raise AbbeError(f"{name} and {torch_name} are two names for one option: give one of them")
