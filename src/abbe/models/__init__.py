"""Models and text: load a transformer, pull one into the cache, cut text into windows, tap the attention."""

from .._lazy import later as _on_first_use

__getattr__, __dir__, __all__ = _on_first_use(__name__, __file__)
