"""abbe: the resolution limit of attention. It measures real models, proves what can be proved, and lifts the limit."""

import typing as _typing

from ._errors import AbbeError
from ._import_hooks import register_model_type as _register_model_type
from ._import_hooks import when_imported as _when_imported
from ._lazy import later as _on_first_use

if _typing.TYPE_CHECKING:
    from ._attention.attend import attention
    from .models import (
        Export,
        LoadedModel,
        Plan,
        Swap,
        Tap,
        Text,
        Window,
        export,
        load,
        plan,
        pull,
        read_text,
        swap,
        tap,
        windows,
    )
    from .normalizers import Normalizer, NormalizerInfo, list_normalizers, normalizer
    from .results import Result, Run, open_run
    from .studies import (
        Calibration,
        Capacity,
        Comparison,
        Difference,
        Experiment,
        Lift,
        Report,
        Reports,
        Reproduction,
        calibrate,
        capacity,
        compare,
        cost,
        diagnose,
        diff,
        doctor,
        lift,
        merge,
        on_ray,
        open,
        report,
        report_each,
        reproduce,
        shard,
        train_length,
        train_recall,
        train_temperature,
        train_text,
        verify,
    )
    from .training import Monitor

__version__ = "0.1.0"

__all__ = [
    "AbbeError",
    "Calibration",
    "Capacity",
    "Comparison",
    "Difference",
    "Experiment",
    "Export",
    "Lift",
    "LoadedModel",
    "Monitor",
    "Normalizer",
    "NormalizerInfo",
    "Plan",
    "Report",
    "Reports",
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
    "cost",
    "diagnose",
    "diff",
    "doctor",
    "export",
    "lift",
    "list_normalizers",
    "load",
    "merge",
    "normalizer",
    "on_ray",
    "open",
    "open_run",
    "plan",
    "pull",
    "read_text",
    "report",
    "report_each",
    "reproduce",
    "shard",
    "swap",
    "tap",
    "train_length",
    "train_recall",
    "train_temperature",
    "train_text",
    "verify",
    "windows",
]

_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "": {
        "._attention": ("attention",),
        ".normalizers": ("Normalizer", "NormalizerInfo", "list_normalizers", "normalizer"),
        ".studies": ("doctor", "verify"),
    },
    "models": {
        ".models": (
            *("Export", "LoadedModel", "Plan", "Swap", "Tap", "Text", "Window"),
            *("export", "load", "plan", "pull", "read_text", "swap", "tap", "windows"),
        ),
        ".results": ("Result", "Run", "open_run"),
        ".studies": (
            *("Calibration", "Capacity", "Comparison", "Difference", "Experiment", "Lift"),
            *("Report", "Reports", "Reproduction"),
            *("calibrate", "capacity", "cost", "diagnose", "diff", "lift", "merge", "on_ray", "open", "shard"),
            *("train_length", "train_recall", "train_temperature", "train_text"),
        ),
        ".training": ("Monitor",),
    },
    "all": {".studies": ("compare", "report", "report_each", "reproduce")},  # they write pages
}
_MODULES = (
    *("bounds", "entmax", "lab", "measures", "models", "normalizers", "results", "runs", "studies", "training"),
    *("views", "words"),
)
__getattr__, __dir__ = _on_first_use(__name__, _NAMES, _MODULES)

# Once both are imported, in any order, transformers accepts attn_implementation="abbe:entmax-1.5" and the like.
_when_imported("transformers.modeling_utils", lambda: __getattr__("models").register_attention_names())
# Exported folders that contain a plan have the model type "abbe".
_when_imported(
    "transformers.models.auto.configuration_auto",
    lambda: _register_model_type(lambda: __getattr__("models").carried_config),
)
