"""The network itself, without the wrappers of training and compilation; its sizes; where its parts lie; its logits."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import AbbeError

_PEFT = ("peft.peft_model", "peft.mixed_model")
_OUTSIDE = ("POLY", "XLORA")  # kinds of PEFT whose adapters need what only PEFT's own forward gives them


def unwrapped(model: Any, *, alone: bool = False) -> Any:
    """The network inside `torch.compile`, DistributedDataParallel, DataParallel or PEFT, also if they are nested.

    Args:
        model: wrapped or not.
        alone: the network will be called without its wrapper.

    Returns:
        The network itself. PEFT's adapters are parts of it, so it computes with those that are active.

    Raises:
        AbbeError: called alone, the network would compute something else than PEFT's model, which adds tokens to a text
            or adapts to it.

    Examples:
        >>> layer = torch.nn.Linear(2, 2)
        >>> abbe.models.unwrapped(torch.nn.DataParallel(layer)) is layer
        True
    """
    while isinstance(model, nn.Module):
        inner = getattr(model, "_orig_mod", None)  # of torch.compile: its class is private
        if inner is None and isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            inner = model.module
        elif inner is None and type(model).__module__ in _PEFT:
            inner = _adapted(model, alone)
        if not isinstance(inner, nn.Module):
            break
        model = inner
    return model


def _adapted(model: Any, alone: bool) -> nn.Module | None:
    """The network that a model of PEFT holds, with its adapters."""
    from transformers import PreTrainedModel  # slow to import

    settings = getattr(model, "active_peft_config", None)
    if alone and settings is not None:
        kind = settings.peft_type.value
        if settings.is_prompt_learning or kind in _OUTSIDE or getattr(settings, "alora_invocation_tokens", None):
            raise AbbeError(
                f"unsupported: this {type(model).__name__} ({kind}) adds to its network from outside, and studies call "
                "the network alone; tap or swap the model, and call it yourself"
            )
    return next(_outermost(model, PreTrainedModel), None)


def checked_network(model: object, who: str, search: bool = False) -> Any:
    """The transformers model: `model` or its `network`, unwrapped; with `search`, also the only one within it.

    Or a network that holds none. `who` needs it, for the error.
    """
    from transformers import PreTrainedModel  # slow to import

    network = unwrapped(model)
    if not isinstance(network, PreTrainedModel):
        held = unwrapped(getattr(network, "network", network))
        network = network if isinstance(network, nn.Module) and not isinstance(held, PreTrainedModel) else held
    if isinstance(network, PreTrainedModel):
        return network
    inner = list(_outermost(network, PreTrainedModel)) if isinstance(network, nn.Module) else []
    if search and len(inner) == 1:
        return inner[0]
    if inner or instead_of(network) or not isinstance(network, nn.Module):
        got = f"{type(network).__name__}{instead_of(network)}"
        raise AbbeError(f"{who} needs a transformers model (PreTrainedModel), or a network without one; got {got}")
    return network


def instead_of(model: object) -> str:
    """Advice at the end of an error: what to give instead of an object of another package."""
    if type(model).__module__.startswith("transformer_lens."):
        return ", which computes its attention itself: load the model anew, with transformers or abbe.load"
    if isinstance(getattr(model, "_module", None), nn.Module):  # of nnsight
        return ": give its `_module`, the network that it holds"
    return ""


def _outermost(module: nn.Module, kind: type[nn.Module]) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, kind):
            yield child
        else:
            yield from _outermost(child, kind)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """The network in evaluation mode, not compiled; afterwards every part is back in its previous mode.

    The flags are set one by one: `eval()` may do more in a module that overrides it, and `train()` would put all parts
    into training mode.

    Args:
        network: any module.

    Examples:
        >>> network = torch.nn.Dropout().train()
        >>> with abbe.models.evaluating(network):
        ...     inside = network.training
        >>> inside, network.training
        (False, True)
    """
    with changed((module, "training", False) for module in network.modules()), uncompiled():
        yield


def uncompiled() -> AbstractContextManager[object]:
    """Inside, what torch.compile has compiled runs as written."""
    loaded = "torch._dynamo" in sys.modules  # else nothing can have been compiled
    return torch.compiler.set_stance("force_eager") if loaded else nullcontext()


@contextmanager
def changed(attributes: Iterable[tuple[Any, str, object]]) -> Iterator[None]:
    """Owners whose attributes of these names have other values for a while; in the end all are as before."""
    with ExitStack() as undo:
        for owner, name, value in attributes:
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


# -- Settings, devices and dtypes -------------------------------------------------------------------------------------


def setting(config: Any, *names: str) -> int | None:
    """The first of these settings that is a whole number; where layers differ, the largest of theirs."""
    for name in names:
        # transformers raises an error if such a setting is read from the whole.
        differs = name in (getattr(config, "per_layer_attributes", None) or ())
        values = [getattr(one, name, None) for one in (config.per_layer_config if differs else [config])]
        if numbers := [value for value in values if isinstance(value, int)]:
            return max(numbers)
    return None


def longest_input(config: Any, network: Any) -> int | None:
    """The context in tokens, None if the positions set no limit."""
    limit = setting(config.get_text_config(), "max_position_embeddings")
    if limit is None or limit <= 0:
        return None
    # RoBERTa and its relatives count positions from after the padding index.
    for name, module in network.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return limit - int(module.padding_idx) - 1
    return limit


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def place_of(module: nn.Module) -> torch.device | None:
    """The device on which a module computes; None if it has no weights."""
    for part in module.modules():
        weight = next(chain(part.parameters(recurse=False), part.buffers(recurse=False)), None)
        if weight is not None:
            return _runs_on(part) if weight.is_meta else weight.device
    return None


def input_device(network: Any) -> torch.device:
    """Where tokens go: to the device of the embedding.

    Args:
        network: a transformers model.

    Returns:
        The device.

    Examples:
        >>> abbe.models.input_device(abbe.load("embedded").network)
        device(type='cpu')
    """
    embedding = None
    with suppress(NotImplementedError, AttributeError):  # of two towers, for example
        embedding = network.get_input_embeddings()
    place = place_of(embedding) if isinstance(embedding, nn.Module) else None
    return place or place_of(network) or torch.device("cpu")


def quantised_by(network: Any) -> str:
    """The method that a checkpoint names, such as "bitsandbytes"; empty for plain weights."""
    settings = getattr(getattr(network, "config", None), "quantization_config", None)
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    return "" if method is None else str(getattr(method, "value", method))


def _runs_on(part: nn.Module) -> torch.device | None:
    hook = getattr(part, "_hf_hook", None)
    for one in (hook, *getattr(hook, "hooks", ())):
        if (device := getattr(one, "execution_device", None)) is not None:
            return torch.device(device)
    return None


# -- Sizes: read off the modules, so weights are never needed ---------------------------------------------------------


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


def shape_of(network: nn.Module, kind: str) -> Shape:
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


# -- Logits -----------------------------------------------------------------------------------------------------------


def logits_in_pieces(network: Any, tokens: Tensor, most: int, first: int = 0) -> Iterator[Tensor]:
    """The logits of one row of tokens in pieces: those of all may be larger than the model itself.

    The body of the model runs once. For each piece the model runs again with a stand-in for its body, which returns the
    states of these tokens: so the model itself computes their logits, with everything that it does besides the head.

    Args:
        network: a causal language model of transformers.
        tokens: ids, (tokens,).
        most: approximate number of logits in a piece.
        first: number of the first token whose logits are wanted.

    Yields:
        Logits (tokens of the piece, vocabulary).

    Examples:
        >>> network = abbe.load("embedded").network
        >>> pieces = abbe.models.logits_in_pieces(network, torch.arange(16), most=4 * network.config.vocab_size)
        >>> [len(piece) for piece in pieces]
        [4, 4, 4, 4]
    """
    batch = tokens[None].to(input_device(network))
    head, body = network.get_output_embeddings(), network.base_model_prefix
    # The packed weights of a quantised head do not have the shape of the logits.
    vocabulary = getattr(head, "out_features", None) or len(head.weight)
    rows, wanted = max(1, most // vocabulary), len(tokens) - first
    if rows >= wanted or not isinstance(network._modules.get(body), nn.Module):
        some = {"logits_to_keep": wanted} if first and makes_some_logits(network) else {}
        yield network(input_ids=batch, use_cache=False, **some).logits[0, -wanted:]
        return
    result = network._modules[body](input_ids=batch, use_cache=False)
    states = result.last_hidden_state
    with changed([(network, "_modules", network._modules | {body: _StandIn(result)})]):
        for start in range(first, len(tokens), rows):
            result.last_hidden_state = states[:, start : start + rows]
            logits = network(input_ids=batch, use_cache=False).logits[0]
            if len(logits) != result.last_hidden_state.shape[1]:
                raise AbbeError(f"unsupported: {type(network).__name__} does not give one row of logits per token")
            yield logits


def makes_some_logits(network: Any) -> bool:
    """Whether the model can skip the logits of earlier tokens."""
    return "logits_to_keep" in inspect.signature(network.forward).parameters


class _StandIn(nn.Module):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._result
