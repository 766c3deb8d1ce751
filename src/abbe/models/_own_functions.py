"""The attention functions that a model was configured with, and private names for them that read the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import count
from typing import Any, cast

from torch import nn

from .._errors import AbbeError
from ._session.modules import configs_within, refuse_if_in_use
from ._session.reader import register

_numbers = count(1)


class OwnName(str):
    """A name that reads and compares as the model's own, but hashes differently. Copies are plain strings."""

    _hash: int

    def __new__(cls, name: str) -> OwnName:
        self = super().__new__(cls, name)
        self._hash = hash(("abbe", next(_numbers)))
        return self

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) if isinstance(other, str) else False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __copy__(self) -> str:
        return str(self)

    def __deepcopy__(self, memory: dict[int, Any]) -> str:
        return str(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class OwnFunctions:
    """The attention functions of a network; one that abbe cannot find is refused at once."""

    def __init__(self, network: nn.Module, modules: Iterable[nn.Module]) -> None:
        refuse_if_in_use(network)
        self._network = network
        self._functions: dict[tuple[type[nn.Module], str], Callable[..., Any]] = {}
        names = {config._attn_implementation for config in configs_within(network)} - {None}
        for module in modules:
            for name in names:
                self.of(module, str(name))

    def of(self, module: nn.Module, implementation: str) -> Callable[..., Any]:
        kind = type(module), implementation
        if kind not in self._functions:
            forward: Any = inspect.unwrap(kind[0].forward)
            interface = forward.__globals__["ALL_ATTENTION_FUNCTIONS"]
            default = _eager_function(forward) if implementation == "eager" else None
            self._functions[kind] = interface.get_interface(implementation, default)
        return self._functions[kind]

    def replace(self, replacement: Callable[[str], Callable[..., Any]], undo: ExitStack) -> None:
        """Give the model's functions private names, which lead to their replacements until `undo` closes."""
        from transformers import AttentionMaskInterface

        refuse_if_in_use(self._network)
        names: dict[str, OwnName] = {}
        for config in configs_within(self._network):
            own = config._attn_implementation
            if own is None or isinstance(own, OwnName):
                continue
            if own not in names:
                names[own] = OwnName(own)
                # Without a mask function transformers makes no mask.
                make_mask = AttentionMaskInterface._global_mapping.get(own)
                register(names[own], replacement(own), make_mask, undo)
            # The public setter would also set the parts, and some of them have other settings.
            undo.callback(setattr, config, "_attn_implementation_internal", own)
            config._attn_implementation_internal = names[own]


def _eager_function(forward: Any) -> Callable[..., Any]:
    """The eager attention function of a modelling file: the one that the module's forward names."""
    names = [name for name in forward.__code__.co_names if name.startswith("eager_")]
    if len(names) != 1 or not callable(forward.__globals__.get(names[0])):
        raise AbbeError(
            f"unsupported: {forward.__qualname__} computes eagerly by a function that abbe cannot name; load the model "
            "with attn_implementation='sdpa'"
        )
    return cast(Callable[..., Any], forward.__globals__[names[0]])
