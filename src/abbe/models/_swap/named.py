"""The attention functions behind names such as "abbe:entmax-1.5": fixed normalizers, for any model that asks by name.

What is special: such a function knows its module but not its model, so it trusts no flag: the mask is always built, and
a call without one that should have had one is refused.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from ...normalizers import Normalizer, normalizer
from ...normalizers._dispatch import kernels_from
from .._session.keywords import checked_mask, read_keywords
from .._session.masks import MaskPolicy
from .attention import KERNELS_FROM, swapped_attention
from .layers import is_causal
from .plan import HeadGroup, needs_order

full_mask = MaskPolicy(set(), ()).make_mask


def attend_with(
    spec: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """The attention function of a spec; the signature from `module` on is transformers' own."""
    where, made = type(module).__name__, _made(spec)
    options, mask = read_keywords(where, query, keywords), checked_mask(where, attention_mask)
    if needs_order(made) and not is_causal(module):
        raise AbbeError(f"{made} needs keys in causal order, and {where} is an encoder's or a cross attention")
    if mask is None and query.shape[-2] > 1 and is_causal(module):
        raise AbbeError(f"unsupported: {where} came without a mask, so later keys would be seen; use abbe.swap instead")
    causal = mask is not None and _is_lower_triangle(mask)
    groups = (HeadGroup("*", tuple(range(query.shape[1])), made),)
    with kernels_from(KERNELS_FROM):
        return swapped_attention(module, groups, query, key, value, None if causal else mask, causal, options), None


@lru_cache(maxsize=256)
def _made(spec: str) -> Normalizer:
    return normalizer(spec)


def _is_lower_triangle(mask: Tensor) -> bool:
    """Whether a mask says causal and no more, for which attention() does half the work."""
    queries, keys = mask.shape[-2:]
    if mask.dtype != torch.bool or queries != keys or queries == 1:
        return False
    return bool((mask == torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()).all())
