"""The attention functions behind names such as "abbe:entmax-1.5": fixed normalizers, for any model that asks by name.

What is special: transformers looks a name up when it makes a model, so names must be registered before, and there is a
finite number of them. Such a function knows its module but not its model, so it trusts no flag: the mask is always
built, and a call without one that should have had one is refused.
"""

from __future__ import annotations

from functools import lru_cache, partial

from torch import Tensor, nn

from ..._errors import AbbeError
from ...normalizers import Normalizer, kernels_from, normalizer, usual_specs
from .._session.given import Given, attention_function
from .._session.keywords import Keywords
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
        function = attention_function(lambda module: type(module).__name__, _is_causal, partial(_attend_with, spec))
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, _full_mask)


def _is_causal(module: nn.Module, query: Tensor, mask: Tensor | None, options: Keywords) -> bool:
    return mask is not None and is_lower_triangle(mask)


def _attend_with(spec: str, given: Given) -> Tensor:
    """Attention with the normalizer of a spec."""
    made, heads = _made(spec), tuple(range(given.query.shape[1]))
    if needs_order(made) and not is_causal(given.module):
        raise AbbeError(f"{made} needs keys in causal order, and {given.where} is an encoder's or a cross attention")
    if given.mask is None and given.query.shape[-2] > 1 and is_causal(given.module):
        raise AbbeError(
            f"unsupported: {given.where} came without a mask, so later keys would be seen; use abbe.swap instead"
        )
    groups, mask = (HeadGroup("*", heads, made),), None if given.causal else given.mask
    with kernels_from(KERNELS_FROM):
        return swapped_attention(
            given.module, groups, given.query, given.key, given.value, mask, given.causal, given.options
        )


@lru_cache(maxsize=256)
def _made(spec: str) -> Normalizer:
    return normalizer(spec)
