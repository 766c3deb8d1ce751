"""From the arguments of an attention function to an AttentionCall, and the registration of such a function.

What is special: a function is registered with transformers under a private name, for one model and for a time; hooks
see kind and input of a layer, since the attention function does not get them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from .call import AttentionCall
from .layers import LayerKey, Layers
from .modules import PrivateConfigs, attention_input, attention_kind, configs_within
from .raw_call import RawCall, refuse_weights

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
