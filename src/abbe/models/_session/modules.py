"""The attention modules of a network, and their names and numbers."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from ..._errors import AbbeError
from .._network import changed


class LayerKey(NamedTuple):
    """One attention layer: the module's path, the kind, and how often the module was called before in this pass."""

    name: str
    kind: Literal["self", "cross"]
    repeat: int


class Layers:
    """The layers seen so far, numbered within each kind."""

    def __init__(self) -> None:
        self._numbers: dict[LayerKey, tuple[int, int]] = {}  # among its kind, and among all
        self._kinds: Counter[str] = Counter()
        self._calls: Counter[tuple[str, str]] = Counter()
        self.projections: dict[LayerKey, nn.Module] = {}

    def begin_pass(self, prefix: str) -> None:
        """The part of the model at this path starts a forward pass."""
        for call in [call for call in self._calls if not prefix or f"{call[0]}.".startswith(f"{prefix}.")]:
            del self._calls[call]

    def enter(self, name: str, kind: Literal["self", "cross"]) -> tuple[LayerKey, int, int]:
        """Count a call, and return its layer, the number of the layer among its kind, and that among all."""
        key = LayerKey(name, kind, self._calls[name, kind])
        self._calls[name, kind] += 1
        if key not in self._numbers:
            self._numbers[key] = self._kinds[kind], len(self._numbers)
            self._kinds[kind] += 1
        return key, *self._numbers[key]

    def names(self) -> list[str]:
        return [key.name for key in self._numbers]


class ProjectionFinder:
    """Finds the linear map that reads an attention output first."""

    def __init__(self, network: nn.Module, layers: Layers) -> None:
        from transformers.pytorch_utils import Conv1D  # slow to import

        self._layers = layers
        self._pending: tuple[LayerKey, Tensor] | None = None
        # What lies within an adapter of PEFT is only a part of the projection.
        adapters = tuple(f"{name}." for name, module in network.named_modules() if hasattr(module, "base_layer"))
        self._hooks = [
            module.register_forward_pre_hook(self._see)
            for name, module in network.named_modules()
            if isinstance(module, (nn.Linear, Conv1D)) and not name.startswith(adapters)
        ]

    def expect(self, key: LayerKey, output: Tensor) -> None:
        """The attention of this layer has returned (batch, queries, heads, width)."""
        self._pending = key, output

    def close(self) -> None:
        self._pending = None
        for hook in self._hooks:
            hook.remove()

    def _see(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._pending is None or not args or not isinstance(args[0], Tensor):
            return
        (key, output), states = self._pending, args[0]
        # The attention output with its heads side by side, in the same memory.
        same_memory = states.data_ptr() == output.data_ptr() and states.numel() == output.numel()
        if same_memory and states.shape[-1] == output.shape[-2] * output.shape[-1] and states.is_contiguous():
            self._layers.projections[key] = module
            self._pending = None


TAP_PREFIX, SWAP_PREFIX, LOADED_PREFIX = "abbe-tap-", "abbe-swap-", "abbe:"
CARRIED_NAME = "abbe:plan"  # of a model that was loaded with its plan
CARRIED_FILE = "abbe_plan.safetensors"  # in its folder
PRIVATE = (TAP_PREFIX, SWAP_PREFIX)  # names that a session gives, while it is open

# Linear attention has no logits that compete: its layers are skipped, and a model may have them along with others.
_NOT_SOFTMAX = ("Linear", "Lightning", "Delta")
# Where multi-modal models keep what reads text.
_TEXT_PARTS = ("model.language_model", "language_model", "model.text_model", "text_model")
CROSS_INPUTS = ("key_value_states", "encoder_hidden_states", "cross_attention_states")


def attention_modules(network: nn.Module) -> dict[nn.Module, str]:
    """Every module that routes its attention through the interface, with its path; refuses a model with others."""
    routed, other = readable_modules(network)
    if other:
        raise _unrouted(network, next(iter(other)))
    return routed


def readable_modules(network: nn.Module) -> tuple[dict[nn.Module, str], dict[nn.Module, str]]:
    """The modules that route their attention through the interface, with their paths, and those outside of the layers
    that do not, such as a pooling head. A layer that does not is refused: a table of some of the layers would mislead.
    """
    named = dict(network.named_modules())
    routed = {module: name for name, module in named.items() if _routes(type(module))}
    other = {module: name for name, module in named.items() if _is_other_attention(module, routed)}
    layers = [module for module, name in other.items() if any(part.isdigit() for part in name.split("."))]
    if layers or not routed:
        raise _unrouted(network, next(iter(layers or other), None))
    inner = {name for name in other.values() for outer in other.values() if name.startswith(f"{outer}.")}
    return routed, {module: name for module, name in other.items() if name not in inner}


def skipped_lines(unread: dict[nn.Module, str]) -> list[str]:
    reason = "its attention does not go through transformers' attention interface"
    return [f"{path} ({type(module).__name__}): {reason}" for module, path in unread.items()]


def _unrouted(network: nn.Module, module: nn.Module | None) -> AbbeError:
    which = f" ({type(module).__name__})" if module is not None else ""
    return AbbeError(
        f"unsupported: {type(network).__name__} does not route its attention through transformers' attention "
        f"interface{which}{use_text_part(network)}"
    )


def use_text_part(network: nn.Module) -> str:
    """Advice at the end of an error: the part that reads text, of a model that also reads images or sound."""
    from transformers import PreTrainedModel  # slow to import

    parts = dict(network.named_modules())
    paths = [path for path in _TEXT_PARTS if isinstance(parts.get(path), PreTrainedModel)]
    return f"; use its `{paths[0]}`, which reads text" if paths else ""


def _routes(kind: type[nn.Module]) -> bool:
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def _is_other_attention(module: nn.Module, routed: dict[nn.Module, str]) -> bool:
    """Whether this looks like a custom attention: neither routed, nor around a module that is."""
    name = type(module).__name__
    if "Attention" not in name or any(word in name for word in _NOT_SOFTMAX):
        return False
    return not any(inner in routed for inner in module.modules())


def attention_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    candidates = (*args, *(kwargs.get(name) for name in ("hidden_states", "hidden_state", "x")))
    return next((value.detach() for value in candidates if isinstance(value, Tensor)), None)


def attention_kind(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Literal["self", "cross"]:
    named = dict(zip(inspect.signature(module.forward).parameters, args, strict=False)) | kwargs
    cross = getattr(module, "is_cross_attention", False) or any(named.get(name) is not None for name in CROSS_INPUTS)
    return "cross" if cross else "self"


# The public setter would also set the parts, and some of them have other settings.
_NAME = "_attn_implementation_internal"
_without: dict[int, str | None] = {}  # what a session's configs, by their id, name without any session


class PrivateConfigs:
    """The model's config objects, replaced by copies that name another attention function."""

    def __init__(self, network: nn.Module) -> None:
        self._held = list(_configs_held(network))
        refuse_if_in_use(network)
        self._name = ""
        self._private: list[tuple[nn.Module, str, Any]] = []
        self._names: dict[int, tuple[Any, str | None, str | None]] = {}  # copy, name that it had, the model's own

    def install(self, name: str, undo: ExitStack) -> None:
        self._name = name
        copies: dict[int, Any] = {}  # one memory for all: a config that several modules share stays one object
        self._private = [(module, key, copy.deepcopy(config, copies)) for module, key, config in self._held]
        undo.enter_context(changed(self._private))
        for (_, _, held), (_, _, private) in zip(self._held, self._private, strict=True):
            for part, own in zip(_with_parts(private), _with_parts(held), strict=True):
                if id(part) not in self._names:
                    before = own._attn_implementation
                    before = None if before is None else str(before)  # a plain name, also while a monitor listens
                    self._names[id(part)] = part, before, own_name(own)
                    _without[id(part)] = base_name(own)
                    undo.callback(_without.pop, id(part))
        for part, _, _ in self._names.values():
            setattr(part, _NAME, name)

    @property
    def in_effect(self) -> bool:
        """Whether the model calls the session's function at the moment, and not that of one on top of it."""
        module, key, config = self._private[0]
        return getattr(module, key) is config and config._attn_implementation == self._name

    def removed(self) -> AbstractContextManager[None]:
        """Give the model its own settings for a while."""
        return changed(self._held)

    def original(self) -> AbstractContextManager[None]:
        """Give the model the attention that it had before, for a while."""
        return changed((config, _NAME, name) for config, name, _ in self._names.values())

    def implementations(self) -> set[str | None]:
        """The attention functions that the model was configured with."""
        return {name for _, _, name in self._names.values()}

    def is_eager(self, config: Any) -> bool:
        """Whether the model was configured to compute eagerly where it reads this config, or a copy that it made."""
        _, _, name = self._names.get(id(config), (None, None, None))
        return "eager" in ({name} if name else self.implementations())

    def asks_for_weights(self) -> bool:
        return any(getattr(one, "output_attentions", False) for one, _, _ in self._names.values())


def base_name(config: Any) -> str | None:
    """The attention function that a config names, or would name without taps and swaps."""
    name = getattr(config, "_attn_implementation", None)
    name = _without.get(id(config), name) if name is not None and name.startswith(PRIVATE) else name
    return None if name is None else str(name)


def own_name(config: Any) -> str | None:
    """The function of transformers whose masks a model expects: where abbe's are named, the one that they replace."""
    name = base_name(config)
    return name if name is None or not name.startswith(LOADED_PREFIX) else "eager" if is_eager(type(config)) else "sdpa"


def is_eager(config: type[Any]) -> bool:
    """Whether transformers computes models with this class of config eagerly unless told otherwise."""
    from transformers import MODEL_MAPPING

    known = next((MODEL_MAPPING[kind] for kind in config.__mro__ if kind in MODEL_MAPPING), None)
    model = known[0] if isinstance(known, (tuple, list)) else known
    return model is not None and not model._supports_sdpa


def refuse_if_in_use(network: nn.Module) -> None:
    """Refuse a network that is tapped, and a copy that was made of one during a swap."""
    for config in configs_within(network):
        name, kind = str(config._attn_implementation or ""), type(network).__name__
        if name.startswith(TAP_PREFIX):
            raise AbbeError(f"this {kind} is tapped already; leave the other tap first")
        if name.startswith(SWAP_PREFIX) and id(config) not in _without:
            raise AbbeError(f"this {kind} is a copy that was made during a swap; copy the model before the swap")


def refuse_if_covered(network: nn.Module, name: str) -> None:
    """Refuse to close the session of this name below another one."""
    names = {str(config._attn_implementation or "") for config in configs_within(network)} - {name}
    if any(other.startswith(PRIVATE) for other in names):
        raise AbbeError(
            f"another tap or swap of this {type(network).__name__} was opened later: leave it before this one"
        )


def configs_within(network: nn.Module) -> list[Any]:
    """Every config object of the modules of a network, and the parts of each, once."""
    held = _configs_held(network)
    return list({id(part): part for _, _, config in held for part in _with_parts(config)}.values())


def _configs_held(network: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Every attribute of a module that is a config."""
    from transformers import PreTrainedConfig  # slow to import

    for module in network.modules():
        yield from ((module, key, value) for key, value in vars(module).items() if isinstance(value, PreTrainedConfig))


def _with_parts(config: Any) -> Iterator[Any]:
    yield config
    for key in config.sub_configs:
        part = getattr(config, key, None)
        if part is not None:
            yield from _with_parts(part)
