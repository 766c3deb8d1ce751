"""A second implementation of swapped attention: dense, in float64, on the masks that eager models get."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tiny_models import main_output
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from abbe import Normalizer, normalizer

NAME = "test-reference"
Choice = Callable[[str, int], Normalizer | str | None]  # of a layer's path and a head; None is softmax


@contextmanager
def reference(network: nn.Module, choose: Choice) -> Iterator[nn.Module]:
    """A copy of the network that computes with the normalizer that `choose` names for each head."""
    config = copy.deepcopy(network.config)
    config._attn_implementation = "eager"
    twin = type(network)(config).eval().to(network.dtype)
    twin.load_state_dict({name: value for name, value in network.state_dict().items() if "abbe" not in name})
    paths = {module: name for name, module in twin.named_modules()}

    def attend(module: nn.Module, *states: Any, **keywords: Any) -> tuple[Tensor, None]:
        return _attend([choose(paths[module], head) for head in range(states[0].shape[1])], *states, **keywords), None

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, eager_mask)
    try:
        for part in twin.modules():
            if hasattr(part, "config"):
                part.config._attn_implementation_internal = NAME
        yield twin
    finally:
        for interface in (AttentionInterface, AttentionMaskInterface):
            del interface._global_mapping[NAME]


def reference_output(network: nn.Module, choose: Choice | str, **inputs: Any) -> Tensor:
    """The output of the model with these normalizers, or with one in all heads."""
    chosen: Choice = (lambda path, head: choose) if isinstance(choose, str) else choose
    with reference(network, chosen) as twin:
        return main_output(twin(**inputs))


def _attend(
    of_heads: list[Normalizer | str | None], query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, softcap: float | None = None, s_aux: Tensor | None = None,
    position_bias: Tensor | None = None, **_: Any,
) -> Tensor:  # fmt: skip
    repeats = query.shape[1] // key.shape[1]
    keys, values = (x.double().repeat_interleave(repeats, 1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    logits = torch.einsum("bhqd,bhkd->bhqk", query.double(), keys) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if position_bias is not None:
        logits = logits + position_bias
    if attention_mask is not None:
        hidden = attention_mask[..., : logits.shape[-1]] < -1e4
        logits = logits.masked_fill(hidden, -torch.inf)
    if s_aux is not None:
        sinks = s_aux.double().view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
        logits = torch.cat([sinks, logits], -1)
    rows = [normalizer(one or "softmax")(logits[:, head]) for head, one in enumerate(of_heads)]
    weights = torch.stack(rows, 1)[..., -keys.shape[-2] :]
    return (weights @ values).to(value.dtype).transpose(1, 2).contiguous()
