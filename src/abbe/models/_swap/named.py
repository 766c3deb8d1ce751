"""The attention functions behind names such as "abbe:entmax-1.5": fixed normalizers, for any model that asks by name.

What is special: transformers looks a name up when it makes a model, so names must be registered before, and there is a
finite number of them. Such a function knows its module but not its model, so it trusts no flag: the mask is always
built, and a call without one that should have had one is refused.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from torch import Tensor, nn

from ..._errors import AbbeError
from ...normalizers import Normalizer, kernels_from, normalizer, usual_specs
from .._session.keywords import checked_mask, read_keywords
from .._session.masks import MaskPolicy, is_causal, is_lower_triangle
from .._session.modules import LOADED_PREFIX
from .attention import KERNELS_FROM, swapped_attention
from .groups import HeadGroup, needs_order

_full_mask = MaskPolicy(set(), ()).make_mask


def attention_names() -> dict[str, str]:
    """The names for transformers' attn_implementation, such as "abbe:entmax-1.5", each with its spec."""
    return {f"{LOADED_PREFIX}{name}": spec for name, spec in usual_specs().items()}


def register_attention_names() -> None:
    """Make the names known to transformers."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    for name, spec in attention_names().items():
        AttentionInterface.register(name, partial(_attend_with, spec))
        AttentionMaskInterface.register(name, _full_mask)


def _attend_with(
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
    causal = mask is not None and is_lower_triangle(mask)
    groups = (HeadGroup("*", tuple(range(query.shape[1])), made),)
    with kernels_from(KERNELS_FROM):
        return swapped_attention(module, groups, query, key, value, None if causal else mask, causal, options), None


@lru_cache(maxsize=256)
def _made(spec: str) -> Normalizer:
    return normalizer(spec)
