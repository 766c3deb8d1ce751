"""Listening to the attention of a model in training, which computes with the very functions it was configured with.

What is special: the private name of the attention function is a string that reads and compares as the model's own name
("sdpa") and only hashes differently: files of transformers that ask for the name get the same answer as ever, masks are
made by the same function, and the registry leads to abbe, which calls the model's own function with the same arguments.
Nothing of the model is copied, so outputs, gradients and random numbers are those of the plain model, bit by bit.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from ._heard import HeardCall
from ._own_name import OwnName
from ._session.layers import Layers
from ._session.modules import attention_kind, configs_within, readable_modules, refuse_if_in_use
from ._session.reader import lock, models_within
from ._unwrap import network_in


class Consumer(Protocol):
    """Who hears of a training step; none of its methods may raise."""

    def begin_pass(self, inputs: Mapping[str, Any]) -> None:
        """A forward pass in training mode begins.

        Args:
            inputs: its keyword arguments.
        """

    def hear(self, call: HeardCall) -> None:
        """A layer calls its attention function.

        Args:
            call: what it was given, and what it gave.
        """

    def hear_again(self, call: HeardCall) -> None:
        """A layer runs again in the backward pass (gradient checkpointing).

        Args:
            call: what it was given, and what it gave.
        """

    def end_pass(self, output: Any) -> None:
        """The pass is over.

        Args:
            output: of the model; None says that the pass ended by an exception, after which nothing more is reported.
        """


class Listener:
    """A model that a consumer listens to between `open` and `close`.

    Args:
        model: a transformers model, wrapped or not.
        who: listens, for messages.

    Attributes:
        network: the transformers model, without what training and compilation put around it.
        modules: its attention modules, with their paths.
        skipped: attention modules that cannot be read, each with the reason; they compute as ever.

    Examples:
        >>> listener = abbe.models.Listener(abbe.load("embedded").network)
        >>> len(listener.modules), listener.is_open
        (6, False)
    """

    def __init__(self, model: object, who: str = "Monitor") -> None:
        self.network = network_in(model, who)
        self.modules, unread = readable_modules(self.network)
        reason = "its attention does not go through transformers' attention interface"
        self.skipped = [f"{path} ({type(module).__name__}): {reason}" for module, path in unread.items()]
        self.names: list[str] = []  # of the layers, in the order of their first call
        self._order: dict[tuple[str, str, int], int] = {}
        self._layers = Layers()
        self._own: dict[tuple[type[nn.Module], str], Callable[..., Any]] = {}
        self._inputs: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._numbers: dict[nn.Module, int] = {}  # of the layer that a module was last
        self._undo: ExitStack | None = None
        self._undo_inner = ExitStack()  # what can be undone in the middle of a pass, too
        self._consumer: Consumer | None = None
        self._depth, self._reading = 0, False
        self._captured: list[HeardCall] | None = None
        for config in configs_within(self.network):
            refuse_if_in_use(self.network, config._attn_implementation or "")
        for module in self.modules:
            for name in self._implementations():
                self._own_function(module, name)

    @property
    def is_open(self) -> bool:
        """Whether a consumer listens."""
        return self._undo is not None

    @property
    def compiled(self) -> bool:
        """Whether torch.compile was called on the network or on a part of it."""
        return any(getattr(part, "_compiled_call_impl", None) is not None for part in self.network.modules())

    def open(self, consumer: Consumer) -> None:
        """Report every training pass to the consumer from now on.

        Args:
            consumer: who listens.
        """
        self.close()
        with ExitStack() as undo, lock:
            inner = undo.enter_context(ExitStack())
            self._rename(inner)
            ear = _Ear(self)
            for module in self.modules:
                inner.callback(module.register_forward_pre_hook(ear.see_input, with_kwargs=True).remove)
            if "torch._dynamo" in sys.modules:  # else nothing can have been compiled
                inner.enter_context(torch.compiler.set_stance("force_eager"))
            inner.callback(self._inputs.clear)
            for name, part in models_within(self.network):
                begin = _Ear(self, name)
                undo.callback(part.register_forward_pre_hook(begin.begin, with_kwargs=True).remove)
                undo.callback(part.register_forward_hook(begin.end, always_call=True).remove)
            self._undo, self._undo_inner, self._consumer = undo.pop_all(), inner, consumer
        self._depth, self._reading = 0, False

    def close(self) -> None:
        """Leave the model as it was; once is enough, more do no harm."""
        if self._undo is not None:
            with lock:
                self._undo.close()
            self._undo, self._consumer = None, None

    @torch.no_grad()
    def capture(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HeardCall | None:
        """What the attention function of a module gets for these inputs: its forward runs up to that call.

        Args:
            module: an attention module of the network.
            args: of its forward.
            kwargs: of its forward.

        Returns:
            The call; None if the module did not attend.
        """
        captured: list[HeardCall] = []
        self._captured = captured
        try:
            module.forward(*args, **kwargs)
        except _Enough:
            pass
        finally:
            self._captured = None
        return captured[0] if captured else None

    def _implementations(self) -> set[str]:
        names = {config._attn_implementation for config in configs_within(self.network)}
        return {str(name) for name in names if name is not None}

    def _rename(self, undo: ExitStack) -> None:
        """Give the model's attention functions private names, which lead here."""
        from transformers import AttentionInterface, AttentionMaskInterface

        names: dict[str, OwnName] = {}
        for config in configs_within(self.network):
            own = config._attn_implementation
            if own is None or isinstance(own, OwnName):
                continue
            refuse_if_in_use(self.network, own)
            if own not in names:
                names[own] = name = OwnName(own)
                AttentionInterface.register(name, self._function(own))
                undo.callback(AttentionInterface._global_mapping.pop, name, None)  # there is no public way
                if own in AttentionMaskInterface._global_mapping:  # else transformers makes no mask
                    make_mask: Any = AttentionMaskInterface._global_mapping[own]
                    AttentionMaskInterface.register(name, make_mask)
                    undo.callback(AttentionMaskInterface._global_mapping.pop, name, None)
            # The public setter would set the parts too, and some of them have settings of their own.
            undo.callback(setattr, config, "_attn_implementation_internal", own)
            config._attn_implementation_internal = names[own]

    def _function(self, implementation: str) -> Callable[..., Any]:
        """What transformers calls in place of the model's own function."""

        def attention_function(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *rest: Any,
            **keywords: Any,
        ) -> Any:  # fmt: skip
            given = (query, key, value, attention_mask, keywords)
            if self._captured is not None and module in self.modules:
                self._captured.append(self._heard(module, implementation, given, None, -1))
                raise _Enough
            own = self._own_function(module, implementation)
            result = own(module, query, key, value, attention_mask, *rest, **keywords)
            if self._consumer is not None and module in self.modules:
                self._tell(self._consumer, module, implementation, given, result[0])
            return result

        return attention_function

    def _tell(
        self, consumer: Consumer, module: nn.Module, implementation: str, given: tuple[Any, ...], output: Tensor
    ) -> None:
        if self._reading:
            name, inputs = self.modules[module], self._inputs.get(module, ((), {}))
            key, _ = self._layers.enter(name, attention_kind(module, *inputs))
            if key not in self._order:
                self._order[key] = len(self.names)
                self.names.append(name)
            self._numbers[module] = self._order[key]
            consumer.hear(self._heard(module, implementation, given, output, self._order[key]))
        elif self._depth == 0 and module in self._numbers:
            consumer.hear_again(self._heard(module, implementation, given, output, self._numbers[module]))

    def _heard(
        self, module: nn.Module, implementation: str, given: tuple[Any, ...], output: Tensor | None, layer: int
    ) -> HeardCall:
        query, key, value, mask, keywords = given
        inputs = self._inputs.pop(module, ((), {}))
        kind = attention_kind(module, *inputs)
        eager = implementation == "eager"
        return HeardCall(
            layer, self.modules[module], kind, module, inputs, query, key, value, mask, keywords, eager, output
        )

    def _own_function(self, module: nn.Module, implementation: str) -> Callable[..., Any]:
        kind = type(module), implementation
        if kind not in self._own:
            forward: Any = inspect.unwrap(kind[0].forward)
            interface = forward.__globals__["ALL_ATTENTION_FUNCTIONS"]
            default = _eager_function(forward) if implementation == "eager" else None
            self._own[kind] = interface.get_interface(implementation, default)
        return self._own[kind]

    def _begin(self, prefix: str, part: nn.Module, inputs: Mapping[str, Any]) -> None:
        self._depth += 1
        if self._depth == 1:
            self._reading = part.training and torch.is_grad_enabled()
            self._numbers.clear()
            if self._reading and self._consumer is not None:
                self._consumer.begin_pass(inputs)
        if self._reading:
            self._layers.begin_pass(prefix)

    def _end(self, output: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and self._reading:
            self._reading = False
            if self._consumer is not None:
                self._consumer.end_pass(output)
            if output is None:  # an exception; the hooks that torch is walking now go with `close`
                self._consumer = None
                with lock:
                    self._undo_inner.close()


class _Ear:
    """The hooks of a listener. A copy of the model gets deaf ones."""

    def __init__(self, listener: Listener | None = None, prefix: str = "") -> None:
        self.listener, self.prefix = listener, prefix

    def __deepcopy__(self, memory: dict[int, Any]) -> _Ear:
        return _Ear()

    def __reduce__(self) -> tuple[type[_Ear], tuple[()]]:
        return _Ear, ()

    def see_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.listener is not None:
            self.listener._inputs[module] = args, kwargs

    def begin(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.listener is not None:
            self.listener._begin(self.prefix, part, kwargs)

    def end(self, part: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.listener is not None:
            self.listener._end(output)


class _Enough(Exception):
    """Queries and keys are known: the rest of a forward is not needed."""


def _eager_function(forward: Any) -> Callable[..., Any]:
    """The function that a modelling file computes with when it computes eagerly: the one that its forward names."""
    names = [name for name in forward.__code__.co_names if name.startswith("eager_")]
    if len(names) != 1 or not callable(forward.__globals__.get(names[0])):
        raise AbbeError(
            f"unsupported: {forward.__qualname__} computes eagerly by a function that abbe cannot name; load the model "
            "with attn_implementation='sdpa'"
        )
    return cast(Callable[..., Any], forward.__globals__[names[0]])
