"""What a command does, as a function."""

from .._declared import names as _declared_names
from .._lazy import later as _on_first_use

__getattr__, __dir__, __all__ = _on_first_use(__name__, __file__, declared=_declared_names)
