"""Normalizers: maps from attention logits to attention weights, behind one registry.

`normalizer` makes one from a spec, `list_normalizers` lists them. The other names are for code that builds on
normalizers: attention, swaps in a model, fits of learned parameters.
"""

from ._base import *
from ._for_attention import *
from ._options import *
from ._registry import *
from ._regularized import *
from ._row_map import *
from ._softmax import *

__all__ = [name for name in tuple(globals()) if not name.startswith("_")]
