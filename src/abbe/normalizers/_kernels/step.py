"""One query's attention from end to end: scores, a map's weights, and the sum of values, while the row is in cache.

Array arguments are C-ordered: key (batch, key heads, keys, width), query (batch, heads, 1, width), value (batch, key
heads, keys, value width), params as for the map, scale (1,), output (batch, 1, heads, value width). A row is one query
head of one batch element; neighbouring heads share a key head where there are fewer of these.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..._kernels.compiled import from_source, kernel
from ..._kernels.vector import ZERO, f32
from .blend import rows_of

_GATHERED = 48  # 12 passes of four keys: 12 terms per float32 sum, as in `sums`

_SOURCE = """
def {name}(key, query, value, params, scale, output, start, stop):
    heads, keys = query.shape[1], key.shape[2]
    shared_by = heads // key.shape[1]
    logits, weights = np.empty((1, keys), np.float32), np.empty((1, keys), np.float32)
    places = np.empty(keys, np.int64)
    for r in range(start, stop):
        batch, head = r // heads, r % heads
        score(query[batch, head, 0], key[batch, head // shared_by], scale[0], logits[0])
        forward(logits, rows_of(params, r, r + 1), weights, 0, 1)
        sum_values(weights[0], value[batch, head // shared_by], places, output[batch, 0, head])
"""


@kernel
def score(query: Any, keys: Any, scale: Any, logits: Any) -> None:
    for j in range(keys.shape[0]):
        total = ZERO
        for d in range(query.shape[0]):
            total += query[d] * keys[j, d]
        logits[j] = scale * total


@kernel
def sum_values(weights: Any, values: Any, places: Any, output: Any) -> None:
    """Only over the keys that have a weight, NaN included; in float32 over _GATHERED keys, then in float64."""
    kept = 0
    for j in range(weights.shape[0]):  # no branches: they would be mispredicted
        places[kept] = j
        kept += 1 if weights[j] != ZERO else 0
    if kept <= _GATHERED:
        sum_some(weights, values, places[:kept], output)
        return
    total = np.zeros(output.shape[0], np.float64)
    for start in range(0, kept, _GATHERED):
        sum_some(weights, values, places[start : min(start + _GATHERED, kept)], output)
        for d in range(output.shape[0]):
            total[d] += output[d]
    for d in range(output.shape[0]):
        output[d] = f32(total[d])


@kernel
def sum_some(weights: Any, values: Any, places: Any, output: Any) -> None:
    """Four keys at a time, since each pass reads and writes the sum."""
    output[:] = ZERO
    kept = places.shape[0]
    whole = kept - kept % 4
    for c in range(0, whole, 4):
        i, j, k, l = places[c], places[c + 1], places[c + 2], places[c + 3]  # noqa: E741
        a, b, e, f = weights[i], weights[j], weights[k], weights[l]
        for d in range(output.shape[0]):
            output[d] += (a * values[i, d] + b * values[j, d]) + (e * values[k, d] + f * values[l, d])
    for c in range(whole, kept):
        i = places[c]
        a = weights[i]
        for d in range(output.shape[0]):
            output[d] += a * values[i, d]


@cache
def step(forward: Any) -> Any:
    """A kernel for each map, since a kernel cannot take another as an argument and be cached."""
    name = f"step_{forward.py_func.__module__.rpartition('.')[2]}_{forward.py_func.__name__}"
    scope = {"np": np, "forward": forward, "rows_of": rows_of, "score": score, "sum_values": sum_values}
    return kernel(from_source(_SOURCE.format(name=name), name, __file__, scope))
