"""The lab: small transformers trained on generated tasks, side by side, with controls."""

from .._lazy import later as _on_first_use

__getattr__, __dir__, __all__ = _on_first_use(__name__, __file__)
