"""A network of the user as a LoadedModel, unchanged."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..._errors import AbbeError
from .._session.masks import causal_flag
from .._unwrap import instead_of, unwrapped
from .kind import Kind, longest_input, setting
from .load import LoadedModel


def wrap(network: nn.Module, tokenizer: Any, name: str | None = None) -> LoadedModel:
    """What `load` returns, for a transformers network that is in memory already; it is not changed.

    Wrappers of torch.compile or parallel training are left out.

    Args:
        network: a transformers model of text.
        tokenizer: of transformers.
        name: shown in tables; by default that of its configuration.

    Returns:
        The network with its tokenizer.

    Raises:
        AbbeError: it is not a transformers model, or reads images or sound.

    Examples:
        >>> loaded = abbe.load("embedded")
        >>> abbe.models.wrap(loaded.network, loaded.tokenizer, "mine").name
        'mine'
    """
    from transformers import PreTrainedModel

    network = unwrapped(network, alone=True)
    if not isinstance(network, PreTrainedModel):
        raise AbbeError(f"{type(network).__name__} is not a transformers model{instead_of(network)}")
    offloaded = any(hasattr(part, "_hf_hook") for part in network.modules())  # accelerate's hooks bring weights back
    if not offloaded and any(one.is_meta for one in network.parameters()):
        raise AbbeError(f"weights of this {type(network).__name__} are on the meta device: load them into memory first")
    config: Any = network.config
    label = name or getattr(config, "name_or_path", "") or type(network).__name__
    # A model of images or sound names its input.
    if (main := getattr(network, "main_input_name", "input_ids")) != "input_ids":
        raise AbbeError(
            f"{type(network).__name__} reads {main}, not tokens of a text: give a text model, or a part that is one"
        )
    layers, heads = (
        setting(config.get_text_config(), what) or "?" for what in ("num_hidden_layers", "num_attention_heads")
    )
    about = f"{type(network).__name__}, {layers} layers x {heads} heads"
    return LoadedModel(label, network, tokenizer, _kind(network, config), longest_input(config, network), about, label)


def _kind(network: nn.Module, config: Any) -> Kind:
    if config.is_encoder_decoder:
        return "encoder-decoder"
    flags = {causal_flag(module) for module in network.modules()} - {None}
    return "decoder" if True in flags or not flags else "encoder"
