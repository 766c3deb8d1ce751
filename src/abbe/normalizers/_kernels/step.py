"""One query's attention from end to end: scores, a map's weights, and the sum of values, while the row is in cache.

Array arguments are C-ordered: key (batch, key heads, keys, width), query (batch, heads, 1, width), value (batch, key
heads, keys, value width), params as for the map, scale (1,), output (batch, 1, heads, value width). A row is one query
head of one batch element; adjacent heads share a key head if these are fewer.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..._kernels.compiled import from_source, kernel
from ..._kernels.sums import sum_of_rows
from ..._kernels.vector import ZERO
from .shaped import rows_of

_SOURCE = """
def {name}(key, query, value, params, scale, output, start, stop):
    heads, keys = query.shape[1], key.shape[2]
    shared_by = heads // key.shape[1]
    logits, weights = np.empty((1, keys), np.float32), np.empty((1, keys), np.float32)
    places, packed, total = np.empty(keys, np.int64), np.empty(keys, np.float32), np.empty(value.shape[3], np.float64)
    for r in range(start, stop):
        batch, head = r // heads, r % heads
        score(query[batch, head, 0], key[batch, head // shared_by], scale[0], logits[0])
        forward(logits, rows_of(params, r, r + 1), weights, 0, 1)
        sum_values(weights[0], value[batch, head // shared_by], places, packed, total, output[batch, 0, head])
"""


@kernel
def score(query: Any, keys: Any, scale: Any, logits: Any) -> None:
    for j in range(keys.shape[0]):
        total = ZERO
        for d in range(query.shape[0]):
            total += query[d] * keys[j, d]
        logits[j] = scale * total


@kernel
def sum_values(weights: Any, values: Any, places: Any, packed: Any, total: Any, output: Any) -> None:
    """Over the keys with a nonzero weight, NaN included."""
    kept = 0
    for j in range(weights.shape[0]):  # no branches: they would be mispredicted
        places[kept] = j
        packed[kept] = weights[j]
        kept += 1 if weights[j] != ZERO else 0
    sum_of_rows(packed[:kept], places[:kept], values, total, output)


@cache
def step(forward: Any) -> Any:
    """One kernel per map, since a kernel that takes another as an argument cannot be cached."""
    name = f"step_{forward.py_func.__module__.rpartition('.')[2]}_{forward.py_func.__name__}"
    scope = {"np": np, "forward": forward, "rows_of": rows_of, "score": score, "sum_values": sum_values}
    return kernel(from_source(_SOURCE.format(name=name), name, __file__, scope))
