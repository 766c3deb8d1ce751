"""The keyword names of torch's scaled_dot_product_attention, translated to those of `attention`.

What is special: torch aligns is_causal at the first query and the first key, `causal` aligns the last ones. They agree
where queries and keys are equally many; elsewhere is_causal becomes a mask.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._errors import AbbeError


class Options(NamedTuple):
    """The options of `attention` under its names, first those that torch calls otherwise."""

    mask: Tensor | None = None
    position_bias: Tensor | None = None
    causal: bool = False
    dropout: float = 0.0
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    sink: Tensor | float | None = None


def from_sdpa(
    q: Tensor, k: Tensor, own: Options, attn_mask: Tensor | None, is_causal: bool | None, dropout_p: float | None,
    enable_gqa: bool | None,
) -> Options:  # fmt: skip
    """`own` with what was given in torch's names; an option given under both is an error."""
    if attn_mask is not None:
        own = _with_mask(own, attn_mask)
    if dropout_p is not None:
        _refuse_both("dropout", own.dropout != 0, "dropout_p")
        own = own._replace(dropout=dropout_p)
    if is_causal is not None:
        _refuse_both("causal", own.causal, "is_causal")
        own = _with_causal(own, is_causal, q, k)
    if enable_gqa is False and isinstance(q, Tensor) and isinstance(k, Tensor):
        _check_same_heads(q, k)
    return own


def _with_mask(own: Options, attn_mask: Tensor) -> Options:
    """A bool mask says True = attend, as ours does; a floating one is added to the scores."""
    if isinstance(attn_mask, Tensor) and attn_mask.is_floating_point():
        _refuse_both("position_bias", own.position_bias is not None, "a floating attn_mask")
        return own._replace(position_bias=attn_mask)
    _refuse_both("mask", own.mask is not None, "attn_mask")
    if not isinstance(attn_mask, Tensor) or attn_mask.dtype != torch.bool:
        what = attn_mask.dtype if isinstance(attn_mask, Tensor) else repr(attn_mask)
        raise AbbeError(f"attn_mask must be a bool tensor (True = attend) or a floating one; got {what}")
    return own._replace(mask=attn_mask)


def _with_causal(own: Options, is_causal: bool, q: Tensor, k: Tensor) -> Options:
    if not is_causal or q.shape[-2] == k.shape[-2]:
        return own._replace(causal=is_causal)
    shown = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    return own._replace(mask=shown if own.mask is None else own.mask & shown)


def _check_same_heads(q: Tensor, k: Tensor) -> None:
    """One head of keys for all queries is a broadcast in torch, too."""
    heads, of_keys = q.shape[-3], k.shape[-3]
    if of_keys not in (1, heads):
        raise AbbeError(
            f"enable_gqa is False, but query has {heads} heads and key has {of_keys}: leave it out, or say True"
        )


def _refuse_both(ours: str, given: bool, torchs: str) -> None:
    if given:
        raise AbbeError(f"{ours} and {torchs} are two names for one option: give one of them")
