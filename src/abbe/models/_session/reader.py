"""torch.save, pickle and deepcopy of a model that is tapped or swapped at the moment.

What is special: the file holds the model as it was before and will be after, so reading it does not need abbe. pickle
asks the object itself how to write it, so for the duration of the tap or swap the network answers with a copy that
shares all tensors, but has the settings, hooks and parts of the plain model.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from .call import AttentionCall, RawCall, refuse_weights
from .modules import LayerKey, Layers, PrivateConfigs, attention_input, attention_kind, configs_within

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


# Held while a model's settings, hooks and registered names change.
lock = threading.Lock()


def register(name: str, attend: Callable[..., Any], make_mask: Any, undo: ExitStack) -> None:
    """Register an attention function, and its mask function if any, with transformers until `undo` closes."""
    from transformers import AttentionInterface, AttentionMaskInterface

    for interface, function in ((AttentionInterface, attend), (AttentionMaskInterface, make_mask)):
        if function is not None:
            interface.register(name, function)
            # There is no public way to unregister.
            undo.callback(interface._global_mapping.pop, name, None)


class CallReader:
    """Numbers the layers of one model and turns each call into an AttentionCall."""

    def __init__(self, network: nn.Module) -> None:
        self.layers = Layers()
        self._network = network
        self._modules: dict[nn.Module, str] = {}
        self._inputs: dict[nn.Module, tuple[Tensor | None, Literal["self", "cross"]]] = {}

    def watch(self, modules: dict[nn.Module, str], undo: ExitStack) -> None:
        """See the inputs of these attention modules (with their paths), and where a forward pass begins."""
        self._modules = modules
        undo.callback(self._inputs.clear)
        for module in modules:
            undo.callback(module.register_forward_pre_hook(self._see_input, with_kwargs=True).remove)
        for name, part in models_within(self._network):
            undo.callback(part.register_forward_pre_hook(self._begin(name)).remove)

    def read(self, raw: RawCall) -> tuple[LayerKey, AttentionCall]:
        """The layer that this call belongs to, and its inputs without gradients."""
        name, options = self._modules.get(raw.module, type(raw.module).__name__), raw.options
        # Removed: otherwise the states of every layer would live until its next call.
        hidden, kind = self._inputs.pop(raw.module, (None, "self"))
        layer, number, place = self.layers.enter(name, kind)
        call = AttentionCall(
            number, name, kind, raw.query.detach(), raw.key.detach(), raw.value.detach(), options.scale,
            options.softcap, detached(options.sink), detached(options.position_bias), options.window,
            detached(raw.mask), raw.causal, hidden, self.layers.projections.get(layer), place,
        )  # fmt: skip
        return layer, call

    def _begin(self, prefix: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda part, args: self.layers.begin_pass(prefix)

    def _see_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inputs[module] = attention_input(args, kwargs), attention_kind(module, args, kwargs)


def refuse_requests_for_weights(network: nn.Module, configs: PrivateConfigs, undo: ExitStack) -> None:
    """Refuse output_attentions, whether requested by keyword or by the model's settings."""

    def refuse(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        refuse_weights(type(part).__name__, kwargs.get("output_attentions") or configs.asks_for_weights())

    for _, part in models_within(network):
        undo.callback(part.register_forward_pre_hook(refuse, with_kwargs=True).remove)


def refuse_silence(
    network: nn.Module, modules: dict[nn.Module, str], called: set[nn.Module], configs: PrivateConfigs, undo: ExitStack
) -> None:
    """Refuse a pass that goes around these attention modules, on which a session would have no effect.

    A part that did not run is fine: an encoder whose states are given, a tower for images, a dropped layer. So the
    first pass of each module, of what holds it, and of the network is watched: it must lead to a call within that part.
    Cross attention with nothing to read lies beside self-attention that is called.
    """
    settings = [setting for config in configs_within(network) for setting in vars(config).items()]
    drops_layers = any(name.endswith("layerdrop") and value for name, value in settings)

    def watch(part: nn.Module, within: list[nn.Module]) -> None:
        def see(part: nn.Module, args: tuple[Any, ...], output: object) -> None:
            # In a compiled graph nothing can be counted; with its own settings the model calls its own function.
            if torch.compiler.is_compiling() or not configs.private:
                return
            if not called.isdisjoint(within):
                hook.remove()
            elif not (part is network and part.training and drops_layers):
                raise AbbeError(
                    f"unsupported: {type(part).__name__} ran without the attention function of {modules[within[0]]}, "
                    "so a tap or swap has no effect there; load the model anew, and let no other library replace its "
                    "attention"
                )

        hook = part.register_forward_hook(see)
        undo.callback(hook.remove)

    parts: dict[nn.Module, list[nn.Module]] = {}
    for module, name in modules.items():
        for part in {module, network.get_submodule(name.rpartition(".")[0]), network}:
            parts.setdefault(part, []).append(module)
    for part, within in parts.items():
        watch(part, within)


def models_within(network: nn.Module) -> list[tuple[str, nn.Module]]:
    from transformers import PreTrainedModel

    return [(name, part) for name, part in network.named_modules() if isinstance(part, PreTrainedModel)]


def detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()
