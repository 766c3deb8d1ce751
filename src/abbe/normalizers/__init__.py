"""Normalizers: maps from attention logits to attention weights, behind one registry.

`normalizer` makes one from a spec, `list_normalizers` lists them. The other names are for code that builds on
normalizers: attention, swaps in a model, fits of learned parameters.
"""

from . import _base, _for_attention, _options, _registry, _regularized, _row_map, _selection, _softmax
from ._base import *
from ._for_attention import *
from ._options import *
from ._registry import *
from ._regularized import *
from ._row_map import *
from ._selection import *
from ._softmax import *

__all__ = [
    name
    for module in (_base, _for_attention, _options, _registry, _regularized, _row_map, _selection, _softmax)
    for name in module.__all__
]
