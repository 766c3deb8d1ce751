"""A user's own network as a LoadedModel, left as it is."""

from __future__ import annotations

from typing import Any

from torch import nn

from .._errors import AbbeError
from ._load import LoadedModel
from ._load_kind import Kind, longest_input


def wrap(network: nn.Module, tokenizer: Any, name: str | None = None) -> LoadedModel:
    """What `load` returns, for a transformers network that is in memory already; it is not changed."""
    config: Any = getattr(network, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        raise AbbeError(f"{type(network).__name__} is no transformers model: it has no config")
    label = name or getattr(config, "name_or_path", "") or type(network).__name__
    shape = config.get_text_config()
    about = f"{type(network).__name__}, {shape.num_hidden_layers} layers x {shape.num_attention_heads} heads"
    return LoadedModel(label, network, tokenizer, _kind(network, config), longest_input(config, network), about, label)


def _kind(network: nn.Module, config: Any) -> Kind:
    if config.is_encoder_decoder:
        return "encoder-decoder"
    attention = [module for module in network.modules() if hasattr(module, "is_causal")]
    causal = any(module.is_causal for module in attention) if attention else True
    return "decoder" if causal else "encoder"
