"""Listening to the attention of a model in training, which computes with the very functions it was configured with.

What is special: the private name of the attention function is a string that reads and compares as the model's own name
("sdpa") and only hashes differently: modelling files of transformers that read the name see no difference, masks are
built by the same function, and the registry leads to abbe, which calls the model's own function with the same
arguments. Nothing of the model is copied, so outputs, gradients and random numbers are those of the plain model, bit by
bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ._heard import HeardCall
from ._own_functions import OwnFunctions
from ._session.layers import Layers
from ._session.modules import attention_kind, readable_modules, skipped_lines
from ._session.reader import lock, models_within
from ._unwrap import checked_network


class Consumer(Protocol):
    """Receives the passes of a training step; none of its methods may raise."""

    def begin_pass(self, inputs: Mapping[str, Any]) -> None:
        """A forward pass with gradients begins, in whichever mode the model is.

        Args:
            inputs: its keyword arguments.
        """

    def hear(self, call: HeardCall) -> None:
        """A layer calls its attention function.

        Args:
            call: its inputs and output.
        """

    def hear_again(self, call: HeardCall) -> None:
        """A layer runs again in the backward pass (gradient checkpointing).

        Args:
            call: its inputs and output.
        """

    def end_pass(self, output: Any) -> None:
        """The pass is over.

        Args:
            output: of the model; None if the pass ended with an exception, after which nothing more is reported.
        """


class Listener:
    """A model that a consumer listens to between `open` and `close`.

    Args:
        model: a transformers model, wrapped or not.
        who: name of the listening class, for messages.

    Attributes:
        network: the transformers model, without the wrappers of training and compilation.
        modules: its attention modules, with their paths.
        skipped: attention modules that cannot be read, each with the reason; they compute as always.

    Examples:
        >>> listener = abbe.models.Listener(abbe.load("embedded").network)
        >>> len(listener.modules), listener.is_open
        (6, False)
    """

    def __init__(self, model: object, who: str = "Monitor") -> None:
        self.network = checked_network(model, who, search=True)
        self.modules, unread = readable_modules(self.network)
        self.skipped = skipped_lines(unread)
        self._layers = Layers()
        self._functions = OwnFunctions(self.network, self.modules)
        self._inputs: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._numbers: dict[nn.Module, int] = {}  # number of the layer that a module last was
        self._undo: ExitStack | None = None
        self._undo_inner = ExitStack()  # steps that can also be undone in the middle of a pass
        self._consumer: Consumer | None = None
        self._depth, self._reading = 0, False
        self._captured: list[HeardCall] | None = None

    @property
    def names(self) -> list[str]:
        """Paths of the layers, in the order of their first call."""
        return self._layers.names()

    @property
    def is_open(self) -> bool:
        """Whether a consumer listens."""
        return self._undo is not None

    @property
    def compiled(self) -> bool:
        """Whether torch.compile was called on the network or on a part of it."""
        return any(getattr(part, "_compiled_call_impl", None) is not None for part in self.network.modules())

    def open(self, consumer: Consumer) -> None:
        """Report every pass with gradients to the consumer from now on.

        Args:
            consumer: the listener.
        """
        self.close()
        with ExitStack() as undo, lock:
            inner = undo.enter_context(ExitStack())
            self._functions.replace(self._function, inner)
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
        """Restore the model; closing twice does no harm."""
        if self._undo is not None:
            with lock:
                self._undo.close()
            self._undo, self._consumer = None, None

    @torch.no_grad()
    def capture(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HeardCall | None:
        """The call of the attention function of a module for these inputs: its forward runs up to that call.

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

    def _function(self, implementation: str) -> Callable[..., Any]:
        """The function that transformers calls in place of the model's own."""

        def attention_function(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *rest: Any,
            **keywords: Any,
        ) -> Any:  # fmt: skip
            def heard(layer: int, output: Tensor | None) -> HeardCall:
                inputs = self._inputs.pop(module, ((), {}))
                return HeardCall(
                    layer, self.modules[module], attention_kind(module, *inputs), module, inputs, query, key, value,
                    attention_mask, keywords, implementation == "eager", output,
                )  # fmt: skip

            if self._captured is not None and module in self.modules:
                self._captured.append(heard(-1, None))
                raise _Enough
            own = self._functions.of(module, implementation)
            result = own(module, query, key, value, attention_mask, *rest, **keywords)
            if self._consumer is not None and module in self.modules:
                if self._reading:
                    self._consumer.hear(heard(self._enter(module), result[0]))
                elif self._depth == 0 and module in self._numbers:
                    self._consumer.hear_again(heard(self._numbers[module], result[0]))
            return result

        return attention_function

    def _enter(self, module: nn.Module) -> int:
        """Count a call of this module, and return the number of its layer."""
        name, inputs = self.modules[module], self._inputs.get(module, ((), {}))
        _, _, place = self._layers.enter(name, attention_kind(module, *inputs))
        self._numbers[module] = place
        return place

    def _begin(self, prefix: str, inputs: Mapping[str, Any]) -> None:
        self._depth += 1
        if self._depth == 1:
            # Not `part.training`: Lightning trains what `from_pretrained` gives in evaluation mode.
            self._reading = torch.is_grad_enabled()
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
            if output is None:  # an exception; `close` removes the hooks that torch is iterating over now
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
            self.listener._begin(self.prefix, kwargs)

    def end(self, part: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.listener is not None:
            self.listener._end(output)


class _Enough(Exception):
    """Queries and keys are known: the rest of a forward pass is not needed."""
