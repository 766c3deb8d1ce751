"""The lab: small transformers trained on generated tasks, side by side, with controls."""

import typing as _typing

from .._lazy import later as _on_first_use

if _typing.TYPE_CHECKING:
    from .experiments import train_length, train_recall, train_temperature, train_text
    from .result import Experiment

__all__ = ["Experiment", "train_length", "train_recall", "train_temperature", "train_text"]

_NAMES = {
    "models": {
        ".experiments": ("train_length", "train_recall", "train_temperature", "train_text"),
        ".result": ("Experiment",),
    }
}
if not _typing.TYPE_CHECKING:  # types are those of the imports above
    __getattr__, __dir__ = _on_first_use(__name__, _NAMES)
