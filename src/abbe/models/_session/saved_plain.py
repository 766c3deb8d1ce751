"""torch.save, pickle and deepcopy of a model that is tapped or swapped at the moment.

What is special: what is written is the model as it was before and will be after, so nobody needs abbe to read it.
pickle asks the object itself how it is to be written, so the network answers for as long as the tap or swap lasts: with
a copy that shares all tensors, but has the settings, hooks and parts of the plain model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import nn

from .modules import PrivateConfigs

_ANSWERS = ("__reduce_ex__", "__deepcopy__")
_HOOKS = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")


def save_as_plain(
    models: Sequence[nn.Module], configs: PrivateConfigs, undo: ExitStack, added: str | None = None
) -> None:
    """Let these models (a network and those within it) be written as they were, until `undo` closes.

    `added` is a part that the first of them has only for the time being.
    """
    for model in models:
        for name, answer in zip(_ANSWERS, (_reduced, _copied), strict=True):
            model.__dict__[name] = partial(answer, model, models, configs, added)
            undo.callback(model.__dict__.pop, name, None)


def _reduced(
    model: nn.Module, models: Sequence[nn.Module], configs: PrivateConfigs, added: str | None, protocol: Any
) -> Any:
    """What pickle wants to know: of a plain copy with the same tensors."""
    with _silent(models), configs.removed(), _without_hooks(models[0]), _without(models[0], added):
        tensors = (*model.parameters(), *model.buffers())
        # deepcopy takes what its memory holds as done: tensors are shared, not copied.
        plain = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    return plain.__reduce_ex__(protocol)


def _copied(
    model: nn.Module, models: Sequence[nn.Module], configs: PrivateConfigs, added: str | None, memory: dict[int, Any]
) -> Any:
    """A copy with everything, which a swap refuses by name: it must not compute with softmax silently."""
    with _silent(models):
        return copy.deepcopy(model, memory)


@contextmanager
def _silent(models: Sequence[nn.Module]) -> Iterator[None]:
    answers = [(model, {name: model.__dict__.pop(name) for name in _ANSWERS}) for model in models]
    try:
        yield
    finally:
        for model, held in answers:
            model.__dict__.update(held)


@contextmanager
def _without_hooks(network: nn.Module) -> Iterator[None]:
    """Without those of abbe. The dictionaries themselves are put back: handles that remove a hook know them."""
    held = [(module, name, getattr(module, name)) for module in network.modules() for name in _HOOKS]
    ours = {
        number
        for _, name, hooks in held
        if name == _HOOKS[0]
        for number, hook in hooks.items()
        if str(getattr(hook, "__module__", "")).startswith("abbe.")
    }
    try:
        for module, name, hooks in held:
            kept = type(hooks)((number, hook) for number, hook in hooks.items() if number not in ours)
            module.__dict__[name] = kept
        yield
    finally:
        for module, name, hooks in held:
            module.__dict__[name] = hooks


@contextmanager
def _without(network: nn.Module, part: str | None) -> Iterator[None]:
    held = None if part is None else network._modules.pop(part, None)
    try:
        yield
    finally:
        if part is not None and held is not None:
            network._modules[part] = held
