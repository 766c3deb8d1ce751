"""The shape of a network: how many operations and bytes it takes, read off its modules; weights are never needed.

A network on torch's meta device has modules and shapes but no memory: one of 70 billion parameters is built from its
configuration in a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn

from .._arguments import whole
from .._errors import AbbeError
from ._load import LoadedModel
from ._load.sources import Kind, choose, one_line, quiet
from ._network import longest_input, setting

# The sizes of a shape as LlamaConfig names them.
_REQUIRED = {"layers": "num_hidden_layers", "heads": "num_attention_heads", "width": "hidden_size"}
_REQUIRED |= {"mlp": "intermediate_size", "vocabulary": "vocab_size"}
_SIZES = _REQUIRED | {"kv_heads": "num_key_value_heads", "head_width": "head_dim"}


@dataclass(frozen=True)
class Shape:
    """Sizes that decide what a pass costs.

    Attributes:
        layers: attention layers.
        heads: of a layer.
        head_width: features of a head.
        width: of the hidden states.
        mlp: width within the feed-forward part.
        vocabulary: logits per token, 0 without a head.
        parameters: all weights; tied ones count once.
        linear: weights that every token is multiplied with, without embeddings and language-model head.
        causal: whether a query sees no later keys.
        reach: of a sliding window, 0 without one.
    """

    layers: int
    heads: int
    head_width: int
    width: int
    mlp: int
    vocabulary: int
    parameters: int
    linear: float
    causal: bool
    reach: int

    def operations(self, length: float, head: bool = False) -> float:
        """Operations of a pass without attention: linear in the length.

        Args:
            length: in tokens.
            head: with the language-model head.
        """
        return 2.0 * length * (self.linear + head * self.width * self.vocabulary)

    def attention(self, length: float) -> float:
        """Operations of scores and mixing in a pass, which grow with the square; keys after a query do not count.

        Args:
            length: in tokens.
        """
        return 4.0 * length**2 * self.heads * self.head_width * self.layers / (2 if self.causal else 1)


def shape_of(network: nn.Module, kind: Kind) -> Shape:
    """The sizes of a transformers network, also of one without weights.

    Args:
        network: a transformers model.
        kind: "decoder", "encoder" or "encoder-decoder".

    Returns:
        Its shape.

    Examples:
        >>> model = abbe.load("embedded")
        >>> shape = abbe.models.shape_of(model.network, model.kind)
        >>> shape.layers, shape.heads, shape.width
        (6, 8, 256)
    """
    model: Any = network
    config = model.config.get_text_config()
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    layers, heads, width = (setting(config, name) or 1 for name in names)
    return Shape(
        layers=layers,
        heads=heads,
        head_width=setting(config, "head_dim") or width // heads,
        width=width,
        mlp=setting(config, "intermediate_size", "n_inner") or 4 * width,
        vocabulary=setting(config, "vocab_size") or 0,
        parameters=sum(one.numel() for one in model.parameters()),
        linear=_linear(model, config),
        causal=kind == "decoder",
        reach=setting(config, "sliding_window") or 0,
    )


def _linear(network: Any, config: Any) -> float:
    """Weights of matrices other than embeddings; of a mixture of experts only the share that a token uses."""
    skipped = {id(one.weight) for one in network.modules() if isinstance(one, nn.Embedding)}
    skipped.add(id(getattr(network.get_output_embeddings(), "weight", None)))
    experts = setting(config, "num_local_experts", "num_experts", "n_routed_experts") or 1
    used = (setting(config, "num_experts_per_tok") or experts) / experts
    weights = [one for one in network.parameters() if id(one) not in skipped]
    return float(sum(one.numel() * (used if one.dim() == 3 else 1) for one in weights if one.dim() in (2, 3)))


def llama_configuration(shape: Mapping[str, Any]) -> Any:
    """The configuration of a Llama with these sizes.

    Args:
        shape: layers, heads, width, mlp, vocabulary, and if they differ kv_heads and head_width; all >= 1.

    Returns:
        A LlamaConfig.

    Raises:
        AbbeError: a size is missing, unknown, or does not divide another.

    Examples:
        >>> sizes = {"layers": 2, "heads": 4, "width": 64, "mlp": 128, "vocabulary": 100}
        >>> abbe.models.llama_configuration(sizes).head_dim
        16
    """
    if unknown := sorted(set(map(str, shape)) - set(_SIZES)):
        raise AbbeError(f"shape has no {unknown[0]!r}: it has {', '.join(_SIZES)}")
    if missing := [name for name in _REQUIRED if name not in shape]:
        raise AbbeError(f"shape lacks {', '.join(missing)}: give for example layers=32,heads=32,width=4096,...")
    size = {name: whole(name, value, least=1) for name, value in shape.items()}
    heads, kv_heads = size["heads"], size.get("kv_heads", size["heads"])
    if heads % kv_heads:
        raise AbbeError(f"shape has {heads} heads, which {kv_heads} kv_heads do not divide")
    if "head_width" not in size and size["width"] % heads:
        raise AbbeError(f"shape has width {size['width']}, which {heads} heads do not divide: give head_width")
    named = {_SIZES[name]: value for name, value in size.items()}
    # Rotary positions take no memory, so any length can be estimated.
    return import_module("transformers").LlamaConfig(
        **named, max_position_embeddings=1 << 20, tie_word_embeddings=False
    )


def built(config: Any, *, name: str, hollow: bool = False) -> LoadedModel:
    """The network of a configuration with random weights and without a tokenizer.

    Args:
        config: of transformers.
        name: shown in tables.
        hollow: on the meta device: shapes, but no memory for the weights.

    Returns:
        The network.

    Examples:
        >>> sizes = {"layers": 80, "heads": 64, "kv_heads": 8, "width": 8192, "mlp": 28672, "vocabulary": 128256}
        >>> model = abbe.models.built(abbe.models.llama_configuration(sizes), name="70B", hollow=True)
        >>> round(sum(one.numel() for one in model.network.parameters()) / 1e9)
        71
    """
    auto, kind = choose(config, name)
    place = torch.device("meta" if hollow else "cpu")
    with quiet(), one_line(f"cannot build a network like {name}"), place, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network: Any = getattr(import_module("transformers"), auto).from_config(config)
        network.eval().requires_grad_(False)
    return LoadedModel(name, network, None, kind, longest_input(config, network), "", name)
