"""Names for transformers' attn_implementation, such as "abbe:entmax-1.5", and "abbe:plan" of a folder with its plan.

What is special: masks are left out exactly where transformers leaves them out for its own SDPA, so that a named model
is as fast as a swapped one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from ..normalizers import usual_specs
from ._session.call import Keywords, MaskPolicy, RawCall, attention_function
from ._session.modules import CARRIED_NAME, LOADED_PREFIX, is_eager
from ._session.rule import attention_by, refuse_order, standing_rule


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

    function = attention_function(_class_of, _is_causal, _attend)
    for name in (*attention_names(), CARRIED_NAME):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, _make_mask)


def _class_of(module: nn.Module) -> str:
    return type(module).__name__


def _make_mask(*, config: Any = None, **options: Any) -> Tensor | None:
    return _policy(config).make_mask(config=config, **options)


def _is_causal(module: nn.Module, query: Tensor, mask: Tensor | None, options: Keywords) -> bool:
    return mask is None and _policy(module.config).is_causal(module, options.is_causal, query.shape[-2])


_AS_SDPA = MaskPolicy({"sdpa"}, (), lambda config: False)
_AS_EAGER = MaskPolicy({"eager"}, (), lambda config: True)


def _policy(config: Any) -> MaskPolicy:
    # torch.compile cannot follow transformers' table of models.
    eager = torch.compiler.assume_constant_result(is_eager)(type(config))  # type: ignore[no-untyped-call]
    return _AS_EAGER if eager else _AS_SDPA


def _attend(call: RawCall) -> Tensor:
    """Attention with the normalizers that the module was loaded with, or whose name its config has."""
    rule = standing_rule(call.module, call.query.shape[1])
    if rule is None:
        raise AbbeError(
            f"{call.where} has no plan: load the model with from_pretrained, from the folder that `abbe export` wrote"
        )
    for group in rule:
        learned = None if group.normalizer is None else next(group.normalizer.parameters(), None)
        if group.normalizer is not None and learned is not None and learned.device != call.query.device:
            group.normalizer.to(call.query.device)  # those of a name are no part of the network
    if not call.in_order:
        refuse_order(rule, f"and {call.where} is an encoder's or a cross attention")
    return attention_by(call, rule)
