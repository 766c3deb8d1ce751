"""The network itself, without the wrappers of training and compilation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

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
    from transformers import PreTrainedModel

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

    `who` needs it, for the error.
    """
    from transformers import PreTrainedModel

    network = unwrapped(model)
    if not isinstance(network, PreTrainedModel):
        network = unwrapped(getattr(network, "network", network))
    if search and isinstance(network, nn.Module) and not isinstance(network, PreTrainedModel):
        inner = list(_outermost(network, PreTrainedModel))
        network = inner[0] if len(inner) == 1 else network
    if not isinstance(network, PreTrainedModel):
        name = type(network).__name__
        raise AbbeError(f"{who} needs a transformers model (PreTrainedModel); got {name}{instead_of(network)}")
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


def is_compiled(model: Any) -> bool:
    """Whether `torch.compile` is around a model.

    Args:
        model: wrapped or not.

    Returns:
        True if so, also within a parallel wrapper.

    Examples:
        >>> abbe.models.is_compiled(torch.nn.Linear(2, 2))
        False
    """
    while isinstance(model, nn.Module):
        if getattr(model, "_orig_mod", None) is not None:
            return True
        if not isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            return False
        model = model.module
    return False


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
    modes = [(module, module.training) for module in network.modules()]
    with ExitStack() as undo:
        for module, mode in modes:
            undo.callback(setattr, module, "training", mode)
            module.training = False
        if "torch._dynamo" in sys.modules:  # else nothing can have been compiled
            undo.enter_context(torch.compiler.set_stance("force_eager"))
        yield
