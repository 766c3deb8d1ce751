"""The names for transformers' attn_implementation, such as "abbe:entmax-1.5", known as soon as both are imported.

What is special: transformers looks a name up when it makes a model, so names must be registered before, and there is a
finite number of them. `import abbe` loads neither torch nor transformers for that: whichever of the two is imported
last makes the names known.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_INTERFACE = "transformers.modeling_utils"  # holds transformers' registry of attention functions

# Each normalizer that learns nothing and is made of no other, its main parameter and usual values of that; the name
# alone is its default.
_USUAL: dict[str, tuple[str, tuple[float, ...]]] = {
    "softmax": ("temperature", (0.5, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2)),
    "adaptive-temperature": ("", ()),
    "ssmax": ("s", (0.1, 0.2, 0.3, 0.4, 0.5, 1, 2)),
    "logn": ("trained", (128, 256, 512, 1024, 2048, 4096, 8192, 32768)),
    "sparsemax": ("", ()),
    "entmax": ("alpha", (1.1, 1.2, 1.25, 1.3, 1.5, 1.75, 1.9, 2)),
    "asentmax": ("alpha", (1.1, 1.2, 1.25, 1.3, 1.5, 1.75, 1.9, 2)),
    "softmax1": ("", ()),
    "sink": ("b", (0, 1, 2, 3, 4)),
    "clipped": ("", ()),
    "sigmoid": ("", ()),
    "relu": ("power", (1, 2, 3)),
    "softpick": ("", ()),
    "self-adjusted": ("", ()),
    "topk": ("k", (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
    "topp": ("p", (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)),
    "threshold": ("rel", (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)),
    "elastic": ("", ()),
    "norm-softmax": ("gamma", (0.5, 1, 2)),
    "stick-breaking": ("", ()),
}

NAMES: dict[str, str] = {f"abbe:{name}": name for name in _USUAL} | {
    f"abbe:{name}-{value:g}": f"{name}:{parameter}={value:g}"
    for name, (parameter, values) in _USUAL.items()
    for value in values
}


def make_known() -> None:
    """Register the names with transformers, at once if it is there, else when it comes."""
    if _INTERFACE in sys.modules:
        _register()
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())


class _Watcher(MetaPathFinder):
    """Finds nothing itself: it sees to it that the names are registered after the interface was loaded."""

    _looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _INTERFACE or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            # Of this loader alone, which serves this module alone.
            vars(spec.loader)["exec_module"] = self._and_register(spec.loader.exec_module)
        return spec

    def _and_register(self, load: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def exec_module(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _register()

        return exec_module


def _register() -> None:
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    for name, spec in NAMES.items():
        AttentionInterface.register(name, _attention(spec))
        AttentionMaskInterface.register(name, _mask)


def _attention(spec: str) -> Callable[..., Any]:
    def attend(*states: Any, **keywords: Any) -> Any:
        from .models._swap.named import attend_with  # loads torch, and is needed by few

        return attend_with(spec, *states, **keywords)

    return attend


def _mask(**options: Any) -> Any:
    from .models._swap.named import full_mask

    return full_mask(**options)
