"""What a person reads: numbers, findings, names and thresholds that studies and views share."""

from .._lazy import later as _on_first_use

__getattr__, __dir__ = _on_first_use(__name__, {}, ("columns", "files"))
