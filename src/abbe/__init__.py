"""abbe: the resolution limit of attention. It measures real models, proves what can be proved, and lifts the limit."""

import importlib as _importlib
import typing as _typing

from ._attention import attention
from ._errors import AbbeError
from .normalizers import Normalizer, NormalizerInfo, list_normalizers, normalizer

if _typing.TYPE_CHECKING:
    from .models import LoadedModel, Tap, Text, Window, load, pull, read_text, tap, windows
    from .results import Run, open_run
    from .studies import Reproduction, diagnose, reproduce

__version__ = "0.1.0"

__all__ = [
    "AbbeError",
    "LoadedModel",
    "Normalizer",
    "NormalizerInfo",
    "Reproduction",
    "Run",
    "Tap",
    "Text",
    "Window",
    "attention",
    "diagnose",
    "list_normalizers",
    "load",
    "normalizer",
    "open_run",
    "pull",
    "read_text",
    "reproduce",
    "tap",
    "windows",
]

# Found on first use: who only wants a normalizer does not wait for tables and models.
_LATER = {
    "models": ("LoadedModel", "Tap", "Text", "Window", "load", "pull", "read_text", "tap", "windows"),
    "results": ("Run", "open_run"),
    "studies": ("Reproduction", "diagnose", "reproduce"),
}


def __getattr__(name: str) -> _typing.Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(_importlib.import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
