"""tap(model): hand every attention layer's queries, keys and values to consumers while the model runs as it is.

What is special: the model computes with SDPA as before, no attention matrix is formed, and nothing is kept after a
layer. The tap is a named attention function of its own for this one model, known to transformers only while the tap
is open; no module of transformers is patched. Before any number counts, `check` rebuilds the model's output from what
the tap captures.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from ._attention_call import AttentionCall
from ._selfcheck import check_finite, main_output, own_attention, relative_error, tolerance
from ._tap_keywords import checked_mask, read_keywords, refuse_weights
from ._tap_layers import Layers, ProjectionFinder
from ._tap_masks import MaskPolicy
from ._tap_modules import (
    NAME_PREFIX,
    PrivateConfigs,
    attention_input,
    attention_kind,
    attention_modules,
    checked_network,
)
from ._tap_output import model_attention

Consumer = Callable[[AttentionCall], object]

_numbers = count(1)
_lock = threading.Lock()


def tap(model: object) -> Tap:
    """A tap on the attention of a transformers model (or of what `load` returns), to be used in a `with` statement.

    Example:
        >>> with tap(network) as t:
        ...     t.check(input_ids=tokens)  # 3e-07, or an error
        ...     t.listen(lambda call: print(call.layer, call.logits(torch.tensor([100])).shape))
        ...     network(input_ids=tokens)
    """
    return Tap(model)


class Tap:
    """An open tap: `listen` adds consumers, `check` proves the capture, leaving the `with` block restores the model.

    Attributes:
        error: what `check` found, None before.
    """

    def __init__(self, model: object) -> None:
        self.network = checked_network(model)
        self.error: float | None = None
        self._name = f"{NAME_PREFIX}{next(_numbers)}"
        self._consumers: list[Consumer] = []
        self._layers = Layers()
        self._inputs: dict[nn.Module, tuple[Tensor | None, Literal["self", "cross"]]] = {}
        self._finder: ProjectionFinder | None = None  # only during the check
        self._dtypes: set[torch.dtype] = set()
        self._most_keys = 0  # of any call of the check
        self._undo: ExitStack | None = None

    @property
    def layers(self) -> list[str]:
        """Paths of the attention modules, in the order of their first call; complete after `check`."""
        return self._layers.names()

    def listen(self, consumer: Consumer) -> None:
        """Call this with an AttentionCall, layer by layer, in every later forward pass."""
        self._consumers.append(consumer)

    def __enter__(self) -> Self:
        with ExitStack() as undo, _lock:
            self._configs = PrivateConfigs(self.network)
            self._modules = attention_modules(self.network)
            undo.callback(self._configs.restore)
            self._configs.install(self._name)
            undo.callback(self._inputs.clear)
            self._register(undo)
            self._hook(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._undo is not None:
            with _lock:
                self._undo.close()
            self._undo = None

    @torch.no_grad()
    def check(self, **inputs: Any) -> float:
        """Prove on these inputs (those of the model's forward) that what the tap captures gives the model's output.

        Returns the largest difference over the standard deviation of the output; too large a one is an AbbeError.
        Consumers are not called. Also learns the layers and their output projections.
        """
        self._check_ready(inputs)
        with self._configs.original():
            plain = main_output(self.network(**inputs))
        own = self._rebuilt_output(inputs)
        self._check_complete()
        padding = "decoder_attention_mask" if self.network.config.is_encoder_decoder else "attention_mask"
        self.error = relative_error(plain, own, inputs.get(padding))
        limit = max(tolerance(dtype) for dtype in (plain.dtype, *self._dtypes))
        if not self.error <= limit:
            raise AbbeError(
                f"self-check failed: attention rebuilt from the tap changes the output of "
                f"{type(self.network).__name__} by {self.error:.2g} of its standard deviation (allowed {limit:g}); "
                "nothing was measured"
            )
        return self.error

    def _rebuilt_output(self, inputs: dict[str, Any]) -> Tensor:
        """The model's output with its attention computed from what the tap captures."""
        self._finder, self._most_keys = ProjectionFinder(self.network, self._layers), 0
        try:
            return main_output(self.network(**inputs))
        finally:
            self._finder.close()
            self._finder = None

    def _check_ready(self, inputs: dict[str, Any]) -> None:
        if self._undo is None:
            raise AbbeError("the tap is not open: use it as `with tap(model) as t:`")
        if self.network.training:
            raise AbbeError("the model is in training mode, where dropout makes its output random; call .eval() first")
        if inputs.get("past_key_values") is not None:
            raise AbbeError("check runs the model twice and needs inputs without past_key_values, which a run changes")

    def _check_complete(self) -> None:
        """Refuse a model that did not call every attention module, and a text that would prove nothing."""
        called = set(self.layers)
        silent = [name for name in self._modules.values() if name not in called]
        if silent:
            raise AbbeError(
                f"unsupported: {type(self.network).__name__} did not call {len(silent)} of its {len(self._modules)} "
                f"attention modules for these inputs, the first being {silent[0]}; tap the part that runs"
            )
        if self._most_keys < 2:
            # One key has the weight 1, whatever its logit.
            raise AbbeError("check needs a text of at least 2 tokens: one token alone proves nothing about attention")

    def _register(self, undo: ExitStack) -> None:
        from transformers import AttentionInterface, AttentionMaskInterface

        policy = MaskPolicy(self._configs.implementations(), self._modules)
        self._policy = policy
        for interface, function in ((AttentionInterface, self._attend), (AttentionMaskInterface, policy.make_mask)):
            interface.register(self._name, function)
            # There is no public way to unregister.
            undo.callback(interface._global_mapping.pop, self._name, None)

    def _hook(self, undo: ExitStack) -> None:
        from transformers import PreTrainedModel

        for module in self._modules:
            undo.callback(module.register_forward_pre_hook(self._see_input, with_kwargs=True).remove)
        for name, part in self.network.named_modules():
            if isinstance(part, PreTrainedModel):
                undo.callback(part.register_forward_pre_hook(self._begin(name), with_kwargs=True).remove)

    def _begin(self, prefix: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def begin(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._layers.begin_pass(prefix)
            refuse_weights(type(part).__name__, kwargs.get("output_attentions") or self._configs.asks_for_weights())

        return begin

    def _see_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inputs[module] = attention_input(module, args, kwargs), attention_kind(module, args, kwargs)

    def _attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **keywords: Any,
    ) -> tuple[Tensor, None]:
        """The attention function; the signature is transformers' own."""
        name = self._modules.get(module, type(module).__name__)
        where = f"{type(self.network).__name__} ({name})"
        options, mask = read_keywords(where, query, keywords), checked_mask(where, attention_mask)
        causal = mask is None and self._policy.is_causal(module, options.is_causal, query.shape[-2])
        hidden, kind = self._inputs.pop(module, (None, "self"))
        key_of_layer, number = self._layers.enter(name, kind)
        call = AttentionCall(
            number, name, kind, query.detach(), key.detach(), value.detach(), options.scale, options.softcap,
            _detached(options.sink), _detached(options.position_bias), options.window, _detached(mask), causal,
            hidden, self._layers.projections.get(key_of_layer),
        )  # fmt: skip
        if self._finder is not None:
            output = self._checked_output(call)
            self._finder.expect(key_of_layer, output)
            return output, None
        self._hand_out(call)
        return model_attention(module, query, key, value, mask, causal, options), None

    def _checked_output(self, call: AttentionCall) -> Tensor:
        check_finite(call)
        self._dtypes.add(call.query.dtype)
        self._most_keys = max(self._most_keys, call.key.shape[-2])
        return own_attention(call)

    def _hand_out(self, call: AttentionCall) -> None:
        if self._consumers:
            check_finite(call)
        for consumer in self._consumers:
            consumer(call)


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()
