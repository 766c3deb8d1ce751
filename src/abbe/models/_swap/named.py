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
from .._session.modules import CARRIED_NAME, LOADED_PREFIX
from .attention import KERNELS_FROM, swapped_attention
from .groups import HeadGroup, needs_order

GROUPS = "abbe_groups"  # of an attention module that was loaded with a plan: the normalizers of its heads

_full_mask = MaskPolicy(set(), ()).make_mask


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

    attends = {name: partial(_attend_with, spec) for name, spec in attention_names().items()}
    for name, attend in (attends | {CARRIED_NAME: _attend_with_plan}).items():
        function = attention_function(lambda module: type(module).__name__, _is_causal, attend)
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, _full_mask)


def _is_causal(module: nn.Module, query: Tensor, mask: Tensor | None, options: Keywords) -> bool:
    return mask is not None and is_lower_triangle(mask)


def _attend_with(spec: str, given: Given) -> Tensor:
    """Attention with the normalizer of a spec."""
    return _attend_by(given, (HeadGroup("*", tuple(range(given.query.shape[1])), _made(spec)),))


def _attend_with_plan(given: Given) -> Tensor:
    """Attention with the normalizers that the module was loaded with."""
    groups = given.module.__dict__.get(GROUPS)
    if groups is None:
        raise AbbeError(
            f"{given.where} has no plan: load the model with from_pretrained, from the folder that `abbe export` wrote"
        )
    for group in groups:
        if group.normalizer is not None:
            group.normalizer.to(given.query.device)  # they are no part of the network, which may have moved
    return _attend_by(given, groups)


def _attend_by(given: Given, groups: tuple[HeadGroup, ...]) -> Tensor:
    for group in groups:
        if needs_order(group.normalizer) and not is_causal(given.module):
            raise AbbeError(
                f"{group.normalizer} needs keys in causal order, and {given.where} is an encoder's or a cross attention"
            )
    if given.mask is None and given.query.shape[-2] > 1 and is_causal(given.module):
        raise AbbeError(
            f"unsupported: {given.where} came without a mask, so later keys would be seen; use abbe.swap instead"
        )
    mask = None if given.causal else given.mask
    with kernels_from(KERNELS_FROM):
        return swapped_attention(
            given.module, groups, given.query, given.key, given.value, mask, given.causal, given.options
        )


@lru_cache(maxsize=256)
def _made(spec: str) -> Normalizer:
    return normalizer(spec)
