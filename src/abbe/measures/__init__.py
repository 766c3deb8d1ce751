"""Measures of attention rows, streamed in blocks of queries: readings of a block, sums over blocks, means.

    rows = Rows(logits, weights, vectors, softmax=True)
    sets = choose_sets(rows, DEFAULT_GRID, generator)
    readings = dispersion(rows) | selection(rows, sets) | geometry(rows, sets)
    state = update(state, readings)         # any number of blocks, any chunking; merge(a, b) adds two states
    means = compute(state)                  # or at once: summarize(readings)

Every reading has a value and, if they exist, a proved limit and a random control. `list_measures()` explains them.
"""

from ._block import *
from ._dispersion import *
from ._geometry import *
from ._registry import *
from ._rows import *
from ._sensitivity import *
from ._state import *
from ._statistics import *

__all__ = [name for name in tuple(globals()) if not name.startswith("_")]
