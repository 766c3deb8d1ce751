"""The names of the entmax package: `from abbe import entmax` instead of `import entmax`.

Sparse maps along any dimension, and losses for classes. docs/how-to/entmax.md lists the differences.
"""

from . import activations, losses, root_finding
from .activations import *
from .losses import *
from .root_finding import *

__all__ = [name for module in (activations, losses, root_finding) for name in module.__all__]
