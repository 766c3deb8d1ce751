"""abbe: the resolution limit of attention. It measures real models, proves what can be proved, and lifts the limit."""

import importlib as _importlib
import typing as _typing

from ._errors import AbbeError
from ._when_imported import when_imported as _when_imported

if _typing.TYPE_CHECKING:
    from ._attention.attend import attention
    from .models import LoadedModel, Plan, Swap, Tap, Text, Window, load, plan, pull, read_text, swap, tap, windows
    from .normalizers import Normalizer, NormalizerInfo, list_normalizers, normalizer
    from .results import Result, Run, open_run
    from .studies import (
        Calibration,
        Capacity,
        Comparison,
        Report,
        Reproduction,
        calibrate,
        capacity,
        compare,
        diagnose,
        doctor,
        open,
        report,
        reproduce,
        verify,
    )
    from .training import Monitor

__version__ = "0.1.0"

__all__ = [
    "AbbeError",
    "Calibration",
    "Capacity",
    "Comparison",
    "LoadedModel",
    "Monitor",
    "Normalizer",
    "NormalizerInfo",
    "Plan",
    "Report",
    "Reproduction",
    "Result",
    "Run",
    "Swap",
    "Tap",
    "Text",
    "Window",
    "attention",
    "calibrate",
    "capacity",
    "compare",
    "diagnose",
    "doctor",
    "list_normalizers",
    "load",
    "normalizer",
    "open",
    "open_run",
    "plan",
    "pull",
    "read_text",
    "report",
    "reproduce",
    "swap",
    "tap",
    "verify",
    "windows",
]

# Found on first use: help and Tab do not wait for torch, who wants a normalizer does not wait for tables and models.
_LATER = {
    "_attention": ("attention",),
    "models": (
        *("LoadedModel", "Plan", "Swap", "Tap", "Text", "Window"),
        *("load", "plan", "pull", "read_text", "swap", "tap", "windows"),
    ),
    "normalizers": ("Normalizer", "NormalizerInfo", "list_normalizers", "normalizer"),
    "results": ("Result", "Run", "open_run"),
    "studies": (
        *("Calibration", "Capacity", "Comparison", "Report", "Reproduction"),
        *("calibrate", "capacity", "compare", "diagnose", "doctor", "open", "report", "reproduce", "verify"),
    ),
    "training": ("Monitor",),
}
_MODULES = ("bounds", "measures", "models", "normalizers", "results", "studies", "training", "views", "words")


def __getattr__(name: str) -> _typing.Any:
    if name in _MODULES:
        return _importlib.import_module(f".{name}", __name__)
    for module, names in _LATER.items():
        if name in names:
            found = getattr(_importlib.import_module(f".{module}", __name__), name)
            globals()[name] = found  # the next use finds it at once
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


# attn_implementation="abbe:entmax-1.5" and the like are known to transformers when both are imported, in any order.
_when_imported("transformers.modeling_utils", lambda: __getattr__("models").register_attention_names())
