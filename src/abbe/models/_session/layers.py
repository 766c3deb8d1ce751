"""Which layer a call belongs to, and which module projects its output.

What is special: layers are numbered in the order of their first call, so a module that a model calls several times in
one pass (ALBERT) counts as several layers, and a decoder keeps its numbers when its encoder does not run. The output
projection is the linear map that reads the very memory that the attention function returned; no names are needed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn


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
        for call in [call for call in self._calls if not prefix or call[0].startswith(f"{prefix}.")]:
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
        from transformers.pytorch_utils import Conv1D

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
