"""The attention functions behind names such as "abbe:entmax-1.5": fixed normalizers, for any model.

What is special: transformers looks a name up when it creates a model, so names must be registered before, and their
number is finite. Such a function knows its module but not its model, so it trusts no flag: the mask is always built,
and a call that lacks one is refused.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..._errors import AbbeError
from ...normalizers import kernels_from, normalizer, usual_specs
from .._session.masks import MaskPolicy, is_causal, is_lower_triangle
from .._session.modules import CARRIED_NAME, LOADED_PREFIX
from .._session.raw_call import Attend, RawCall, attention_function
from .attention import KERNELS_FROM, swapped_attention
from .groups import HeadGroup, needs_order

GROUPS = "abbe_groups"  # of an attention module that was loaded with a plan: the normalizers of its heads


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

    # torch.compile cannot follow transformers' table of models.
    is_eager = torch.compiler.assume_constant_result(_is_eager)  # type: ignore[no-untyped-call]
    make_mask = MaskPolicy(set(), (), lambda config: is_eager(type(config))).make_mask
    attends = {name: _attend_with(spec) for name, spec in attention_names().items()}
    for name, attend in (attends | {CARRIED_NAME: _attend_with_plan}).items():
        function = attention_function(
            lambda module: type(module).__name__,
            lambda module, query, mask, options: mask is not None and is_lower_triangle(mask),
            attend,
        )
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, make_mask)


def _is_eager(config: type[Any]) -> bool:
    """Whether transformers computes models with this class of config eagerly unless told otherwise."""
    from transformers import MODEL_MAPPING

    known = next((MODEL_MAPPING[kind] for kind in config.__mro__ if kind in MODEL_MAPPING), None)
    model = known[0] if isinstance(known, (tuple, list)) else known
    return model is not None and not model._supports_sdpa


def _attend_with(spec: str) -> Attend:
    return lambda call: _attend(call, (HeadGroup("*", tuple(range(call.query.shape[1])), _normalizer(spec)),))


def _attend_with_plan(call: RawCall) -> Tensor:
    """Attention with the normalizers that the module was loaded with."""
    groups = call.module.__dict__.get(GROUPS)
    if groups is None:
        raise AbbeError(
            f"{call.where} has no plan: load the model with from_pretrained, from the folder that `abbe export` wrote"
        )
    for group in groups:
        if group.normalizer is not None:
            group.normalizer.to(call.query.device)  # normalizers are no part of the network, which may have moved
    return _attend(call, groups)


def _attend(call: RawCall, groups: tuple[HeadGroup, ...]) -> Tensor:
    causal = is_causal(call.module)
    for group in groups:
        if needs_order(group.normalizer) and not causal:
            raise AbbeError(
                f"{group.normalizer} needs keys in causal order, and {call.where} is an encoder's or a cross attention"
            )
    if call.mask is None and call.query.shape[-2] > 1 and causal:
        raise AbbeError(
            f"unsupported: {call.where} came without a mask, so later keys would be seen; use abbe.swap instead"
        )
    with kernels_from(KERNELS_FROM):
        return swapped_attention(call._replace(mask=None) if call.causal else call, groups)


_normalizer = lru_cache(maxsize=256)(normalizer)
