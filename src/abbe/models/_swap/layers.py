"""The attention layers of a model as `swap` sees them: path, number of heads, and whether keys are in causal order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..._errors import AbbeError
from .._load.places import place_of
from .._session.masks import is_causal

# Names for the number of query heads in modules; a module without one follows its config.
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention module.

    Attributes:
        number: place among the attention modules, in the order in which the network holds them.
        path: of the module in the network, such as "model.layers.3.self_attn".
        heads: number of query heads.
        causal: whether its queries see no later keys, as the module declares it.
    """

    number: int
    path: str
    heads: int
    causal: bool
    module: nn.Module

    @property
    def device(self) -> torch.device:
        return place_of(self.module) or torch.device("cpu")


def layers_of(network: Any, modules: dict[nn.Module, str]) -> list[Layer]:
    """These attention modules, in the order of the network."""
    return [
        Layer(number, path, _heads(network, module, path), is_causal(module), module)
        for number, (module, path) in enumerate(modules.items())
    ]


def _heads(network: Any, module: nn.Module, path: str) -> int:
    for owner in (module, getattr(module, "config", None), network.config.get_text_config()):
        for name in _HEADS:
            if isinstance(heads := getattr(owner, name, None), int):
                return heads
    raise AbbeError(f"unsupported: {type(network).__name__} ({path}) does not say how many heads it has")
