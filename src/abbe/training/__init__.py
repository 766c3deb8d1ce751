"""Training: a monitor of attention for real runs, and what it measured."""

from .._lazy import later as _on_first_use

__getattr__, __dir__, __all__ = _on_first_use(__name__, __file__)
