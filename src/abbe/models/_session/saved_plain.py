"""torch.save, pickle and deepcopy of a model that is tapped or swapped at the moment.

What is special: the file holds the model as it was before and will be after, so reading it does not need abbe. pickle
asks the object itself how to write it, so for the duration of the tap or swap the network answers with a copy that
shares all tensors, but has the settings, hooks and parts of the plain model.
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
_HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
)  # fmt: skip


def save_as_plain(
    models: Sequence[nn.Module], configs: PrivateConfigs, undo: ExitStack, added: str | None = None
) -> None:
    """Let these models (a network and those within it) be written as they were, until `undo` closes.

    `added` is a part that the first of them has only temporarily.
    """

    def reduced(model: nn.Module, protocol: Any) -> Any:
        with _silent(models), configs.removed(), _without_hooks(models[0]), _without(models[0], added):
            # deepcopy treats everything in its memory as copied, so tensors are shared.
            plain = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
        return plain.__reduce_ex__(protocol)

    def copied(model: nn.Module, memory: dict[int, Any]) -> Any:
        # A full copy, which a swap refuses by name: it must not silently compute with softmax.
        with _silent(models):
            return copy.deepcopy(model, memory)

    for model in models:
        for name, answer in zip(_ANSWERS, (reduced, copied), strict=True):
            model.__dict__[name] = partial(answer, model)
            undo.callback(model.__dict__.pop, name, None)


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
    """Without abbe's hooks. The dictionaries themselves are restored: handles that remove a hook refer to them."""
    held = [(module, name, getattr(module, name)) for module in network.modules() for name in _HOOKS]
    ours = {
        number
        for _, _, hooks in held
        for number, hook in hooks.items()
        if str(getattr(hook, "__module__", "")).startswith("abbe.")
    }
    try:
        for module, name, hooks in held:
            module.__dict__[name] = type(hooks)((key, hook) for key, hook in hooks.items() if key not in ours)
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
