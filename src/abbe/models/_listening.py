"""The attention functions that a model was configured with, and private names for them that read the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from ._network import checked_network, uncompiled
from ._own import readable
from ._session import detached, lock, models_within, register
from ._session.call import AttentionCall, Keywords, RawCall, Rule, causal_flag, checked_mask, read_keywords
from ._session.intercept import Hook, Interception
from ._session.modules import Layers, attention_kind, configs_within, refuse_if_in_use
from ._session.rule import rule_of, standing_rule


class OwnName(str):
    """A name that reads and compares as the model's own, but hashes by identity. Copies are plain strings."""

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def _own_function(module: nn.Module, implementation: str) -> Callable[..., Any]:
    """The attention function that a module was configured with; one that abbe cannot find is refused."""
    forward: Any = inspect.unwrap(type(module).forward)
    default = _eager_function(forward) if implementation == "eager" else None
    own: Callable[..., Any] = forward.__globals__["ALL_ATTENTION_FUNCTIONS"].get_interface(implementation, default)
    return own


def _replace_functions(network: nn.Module, replacement: Callable[[str], Callable[..., Any]], undo: ExitStack) -> None:
    """Give the attention functions of a network private names, which lead to replacements until `undo` closes."""
    from transformers import AttentionMaskInterface  # slow to import

    refuse_if_in_use(network)
    names: dict[str, OwnName] = {}
    for config in configs_within(network):
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


@dataclass(frozen=True, eq=False)
class HeardCall:
    """One call of an attention function in a training step: queries, keys and values carry their gradients' graph.

    Attributes:
        layer: counts attention layers in the order of their first call.
        name: path of the attention module in the model.
        kind: "self" or "cross".
        module: the attention module.
        inputs: the arguments of its forward.
        query: (batch, heads, queries, width).
        key: (batch, key heads, keys, width).
        value: (batch, key heads, keys, value width).
        mask: argument of its attention function.
        keywords: the other arguments of its attention function.
        eager: whether that function is transformers' plain one.
        output: of that function.
        rule: the normalizers that the layer computes with, by heads; None for softmax.
    """

    layer: int
    name: str
    kind: Literal["self", "cross"]
    module: nn.Module
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    keywords: Mapping[str, Any]
    eager: bool
    output: Tensor | None = None
    rule: Rule | None = None

    @property
    def dropout(self) -> float:
        """Probability of dropping a weight."""
        return float(self.keywords.get("dropout") or 0.0)

    def rows(self, positions: Tensor, start: int = 0, stop: int | None = None) -> AttentionCall:
        """The call cut to some queries (its queries 0, 1, ...) and sequences.

        Args:
            positions: of the queries, (query,).
            start: the first sequence of the batch.
            stop: one past the last sequence; None for all.
        """
        positions, part = positions.to(self.query.device), slice(start, stop)
        query = self.query.detach()[part][:, :, positions]
        options = self._options
        bias = _cut(detached(options.position_bias), positions, part)
        return AttentionCall(
            self.layer, self.name, self.kind, query, self.key.detach()[part], self.value.detach()[part], options.scale,
            options.softcap, detached(options.sink), bias, options.window, self._row_mask(positions, part),
            rule=self.rule,
        )  # fmt: skip

    @cached_property
    def _options(self) -> Keywords:
        return read_keywords(self.name, self.query, {**self.keywords, "output_attentions": None})

    def _row_mask(self, positions: Tensor, part: slice) -> Tensor | None:
        """Which keys these rows see. Flash attention gets padding as (batch, key), and all else from flags."""
        if isinstance(self.mask, Tensor) and self.mask.dim() == 4:
            return _cut(checked_mask(self.name, self.mask.detach()), positions, part)
        keys = torch.arange(self.key.shape[-2], device=positions.device)
        seen = torch.ones(1, 1, len(positions), len(keys), dtype=torch.bool, device=positions.device)
        if self._is_causal:
            seen &= keys <= positions[:, None]
            if self._options.window is not None:
                seen &= keys > positions[:, None] - self._options.window
        if isinstance(self.mask, Tensor) and self.mask.dim() == 2:
            seen = seen & self.mask.detach()[part, None, None, : len(keys)].bool()
        elif self.mask is not None:
            checked_mask(self.name, self.mask)
        return seen

    @property
    def _is_causal(self) -> bool:
        """Whether later keys are hidden without a mask of four dims; eager attention hides keys by its mask alone."""
        if self.eager or self.query.shape[-2] == 1:
            return False
        requested = self._options.is_causal
        return causal_flag(self.module) is not False if requested is None else requested


def _cut(table: Tensor | None, positions: Tensor, part: slice) -> Tensor | None:
    if table is None:
        return None
    table = table if len(table) == 1 else table[part]
    return table if table.shape[-2] == 1 else table[..., positions, :]


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
        compiled: whether torch.compile was called on the model or on a part of it.

    Examples:
        >>> listener = abbe.models.Listener(abbe.load("embedded").network)
        >>> len(listener.modules), listener.is_open
        (6, False)
    """

    def __init__(self, model: object, who: str = "Monitor") -> None:
        self.network = checked_network(model, who, search=True)
        self.modules, self.skipped = readable(self.network)
        parts = (model if isinstance(model, nn.Module) else self.network).modules()
        marks = ("_orig_mod", "_compiled_call_impl")  # around a compiled module, or in it
        self.compiled = any(getattr(part, mark, None) is not None for part in parts for mark in marks)
        self._layers = Layers()
        self._seen: Interception | None = None  # of a network that is not from transformers
        if not self.modules:
            self._seen = Interception(self.network, self._see, self._begin_own, self._end_own)
            self.modules = self._seen.paths
        else:
            refuse_if_in_use(self.network)
            for implementation in {config._attn_implementation for config in configs_within(self.network)} - {None}:
                for module in self.modules:
                    _own_function(module, implementation)
        self._inputs: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._numbers: dict[nn.Module, int] = {}  # number of the layer that a module last was
        self._undo: ExitStack | None = None
        self._undo_inner = ExitStack()  # steps that can also be undone in the middle of a pass
        self._functions = ExitStack()  # gives the network its own attention functions back
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

    def open(self, consumer: Consumer) -> None:
        """Report every pass with gradients to the consumer from now on.

        Args:
            consumer: the listener.
        """
        self.close()
        with ExitStack() as undo, lock:
            inner = undo.enter_context(ExitStack())
            inner.enter_context(uncompiled())
            if self._seen is not None:
                self._seen.open(undo)
            else:
                self._watch(self.network, undo, inner)
            self._undo, self._undo_inner, self._consumer = undo.pop_all(), inner, consumer
        self._depth, self._reading = 0, False

    def _watch(self, network: nn.Module, undo: ExitStack, inner: ExitStack) -> None:
        """See the calls of a transformers model, and where its passes begin and end."""
        _replace_functions(network, self._function, self._functions)
        inner.callback(lambda: self._functions.close())
        see_input = Hook(self._see_input)
        for module in self.modules:
            inner.callback(module.register_forward_pre_hook(see_input, with_kwargs=True).remove)
        inner.callback(self._inputs.clear)
        for name, part in models_within(network):
            begin, end = Hook(partial(self._begin, name)), Hook(self._end)
            undo.callback(part.register_forward_pre_hook(begin, with_kwargs=True).remove)
            undo.callback(part.register_forward_hook(end, always_call=True).remove)

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
            if self._seen is None:
                module.forward(*args, **kwargs)
            else:
                with suppress(TypeError, ValueError, RuntimeError):  # cut to one sequence, its inputs may not fit
                    self._seen.run(module, args, kwargs)
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
                    standing_rule(module, query.shape[1]),
                )  # fmt: skip

            if self._captured is not None and module in self.modules:
                self._captured.append(heard(-1, None))
                raise _Enough
            own = _own_function(module, implementation)
            result = own(module, query, key, value, attention_mask, *rest, **keywords)
            if module in self.modules:
                inputs = self._inputs.get(module, ((), {}))
                self._report(module, lambda: attention_kind(module, *inputs), lambda layer: heard(layer, result[0]))
            return result

        return attention_function

    def _see(self, raw: RawCall) -> Tensor:
        """What a network that is not from transformers computes itself."""
        assert self._seen is not None
        assert raw.own is not None
        running, options = self._seen.running, raw.options
        assert running is not None
        keywords = {
            "scaling": options.scale, "dropout": options.dropout, "is_causal": raw.causal, "softcap": options.softcap,
            "s_aux": options.sink, "position_bias": options.position_bias, "sliding_window": options.window,
        }  # fmt: skip

        def heard(layer: int, output: Tensor | None) -> HeardCall:
            return HeardCall(
                layer, self.modules.get(raw.module, ""), running.kind(raw), raw.module, (running.args, running.kwargs),
                raw.query, raw.key, raw.value, raw.mask, keywords, False, output, rule_of(raw),
            )  # fmt: skip

        if self._captured is not None:
            self._captured.append(heard(-1, None))
            raise _Enough
        output = raw.own()
        self._report(raw.module, lambda: running.kind(raw), lambda layer: heard(layer, output))
        return output

    def _report(
        self, module: nn.Module, kind: Callable[[], Literal["self", "cross"]], call: Callable[[int], HeardCall]
    ) -> None:
        """Pass a call to the consumer, with the number of its layer: one of a pass, or of its recomputation."""
        if self._consumer is None:
            return
        if self._reading:
            _, _, self._numbers[module] = self._layers.enter(self.modules.get(module, ""), kind())
            self._consumer.hear(call(self._numbers[module]))
        elif self._depth == 0 and module in self._numbers:
            self._consumer.hear_again(call(self._numbers[module]))

    def _begin_own(self, path: str, kwargs: dict[str, Any]) -> None:
        if path == self.modules[self.network]:
            self._begin("", self.network, (), kwargs)

    def _end_own(self, path: str, output: Any) -> None:
        if path == self.modules[self.network]:
            self._end(self.network, (), output)

    def _follow(self) -> None:
        """Hear a network whose attention was replaced since: a swap began or ended between two steps."""
        names = [config._attn_implementation for config in configs_within(self.network)]
        if all(name is None or isinstance(name, OwnName) for name in names):
            return
        with lock, suppress(AbbeError):  # under a tap nothing is heard
            self._functions.close()
            _replace_functions(self.network, self._function, self._functions)

    def _see_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inputs[module] = args, kwargs

    def _begin(self, prefix: str, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._depth += 1
        if self._depth == 1:
            # Not `part.training`: Lightning trains what `from_pretrained` gives in evaluation mode.
            self._reading = torch.is_grad_enabled()
            self._numbers.clear()
            if self._reading:
                self._follow()
            if self._reading and self._consumer is not None:
                self._consumer.begin_pass(kwargs)
        if self._reading:
            self._layers.begin_pass(prefix)

    def _end(self, part: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and self._reading:
            self._reading = False
            if self._consumer is not None:
                self._consumer.end_pass(output)
            if output is None:  # an exception; `close` removes the hooks that torch is iterating over now
                self._consumer = None
                with lock:
                    self._undo_inner.close()


class _Enough(Exception):
    """Queries and keys are known: the rest of a forward pass is not needed."""
