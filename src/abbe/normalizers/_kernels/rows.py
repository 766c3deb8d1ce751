"""Kernels generated from smaller ones: over rows from one row, blends of two maps, one query's attention.

The docstring of this package has the signatures of kernels over rows. A step of a generation is one query's attention
from end to end: scores, a map's weights, and the sum of values, while the row is in cache. Its arrays are C-ordered:
key (batch, key heads, keys, width), query (batch, heads, 1, width), value (batch, key heads, keys, value width), params
as for the map, scale (1,), output (batch, 1, heads, value width). A row is one query head of one batch element;
adjacent heads share a key head if these are fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import carray, types

from ..._kernels.compiled import around, as_pointer, from_source, kernel
from ..._kernels.sums import sum_of_rows
from ..._kernels.vector import ONE, ZERO, row_max, usable

_FORWARD = """
def {name}(logits, params, weights, start, stop):
    {scratch}
    for r in range(start, stop):
        row, out = logits[r], weights[r]
        top = {top}
        if usable(top, out):
            of_row(row, top, params[r if params.shape[0] > 1 else 0], out{last})
"""

_BACKWARD = """
def {name}(grad, logits, weights, params, grad_logits, grad_params, start, stop):
    {scratch}
    for r in range(start, stop):
        of_params = grad_params[r : r + 1]
        of_row(grad[r], logits[r], weights[r], params[r if params.shape[0] > 1 else 0], grad_logits[r], of_params{last})
"""


def forward_rows(scratch: Any = None, top: Any = None) -> Callable[[Any], Any]:
    """Make a forward kernel from of_row(row, top, params, out), which is called for rows that have keys and are finite.

    `top` is the largest logit, or the result of top(row, scratch). `scratch`(keys) allocates arrays for all rows of a
    share, which of_row then takes last: allocating them for every row would cost as much as a short row.
    """
    return _rows(_FORWARD, scratch, "row_max(row)" if top is None else "find_top(row, scratch)", top)


def backward_rows(scratch: Any = None) -> Callable[[Any], Any]:
    """Make a backward kernel from of_row(grad, row, weights, params, out, of_params); of_params is (1, P) or (0, P)."""
    return _rows(_BACKWARD, scratch)


def _rows(template: str, scratch: Any, top: str = "", find_top: Any = None) -> Callable[[Any], Any]:
    scope = {"row_max": row_max, "usable": usable, "make_scratch": scratch, "find_top": find_top}
    allocate, last = ("scratch = make_scratch(logits.shape[1])", ", scratch") if scratch else ("", "")

    def rows_of(of_row: Any) -> Any:
        source = template.format(name=of_row.__name__, scratch=allocate, last=last, top=top)
        return kernel(around(of_row, "of_row", source, dict(scope)))

    return rows_of


_TILE = 1 << 14  # numbers of one array that both maps work on before they are mixed

_BLENDED_FORWARD = """
def {name}(logits, params_a, params_b, share, weights_a, weights_b, mixed, start, stop):
    tile = max(1, {tile} // logits.shape[1])
    scratch = np.empty((tile, logits.shape[1]), np.float32)
    for first in range(start, stop, tile):
        last = min(first + tile, stop)
        of_a = rows_of(weights_a if len(weights_a) > 0 else mixed, first, last)
        of_b = rows_of(weights_b, first, last) if len(weights_b) > 0 else scratch
        kernel_a(rows_of(logits, first, last), rows_of(params_a, first, last), of_a, 0, last - first)
        kernel_b(rows_of(logits, first, last), rows_of(params_b, first, last), of_b, 0, last - first)
        for r in range(last - first):
            mix(of_a[r], of_b[r], share[0], mixed[first + r])
"""

_BLENDED_BACKWARD = """
def {name}(grad, logits, weights_a, weights_b, params_a, params_b, share, grad_logits, of_params, start, stop):
    tile = max(1, {tile} // logits.shape[1])
    scratch = np.empty((tile, logits.shape[1]), np.float32)
    for first in range(start, stop, tile):
        last = min(first + tile, stop)
        g, l, out = rows_of(grad, first, last), rows_of(logits, first, last), rows_of(grad_logits, first, last)
        of_a, of_b = rows_of(weights_a, first, last), rows_of(weights_b, first, last)
        kernel_a(g, l, of_a, rows_of(params_a, first, last), out, of_params, 0, last - first)
        kernel_b(g, l, of_b, rows_of(params_b, first, last), scratch, of_params, 0, last - first)
        for r in range(last - first):
            mix(out[r], scratch[r], share[0], out[r])
"""


@kernel
def mix(a: Any, b: Any, share: Any, out: Any) -> None:
    rest = ONE - share
    for j in range(a.shape[0]):
        out[j] = share * a[j] + rest * b[j]


@kernel
def rows_of(x: Any, first: int, last: int) -> Any:
    """x[first:last] as a new array (numba would not know that a slice is contiguous); all of x if it is one row."""
    if x.shape[0] == 1:
        first, last = 0, 1
    start = types.int64(x.ctypes.data) + first * x.shape[1] * 4
    return carray(as_pointer(start), (last - first, x.shape[1]), np.float32)


def forward(kernel_a: Any, kernel_b: Any) -> Any:
    return _blended(_BLENDED_FORWARD, kernel_a, kernel_b)


def backward(kernel_a: Any, kernel_b: Any) -> Any:
    return _blended(_BLENDED_BACKWARD, kernel_a, kernel_b)


@cache
def _blended(template: str, kernel_a: Any, kernel_b: Any) -> Any:
    """One kernel per pair, since a kernel that takes others as arguments cannot be cached."""
    parts = [f"{k.py_func.__module__.rpartition('.')[2]}_{k.py_func.__name__}" for k in (kernel_a, kernel_b)]
    name = "_and_".join(["blend", *parts])
    source = template.format(name=name, tile=_TILE)
    scope = {"np": np, "kernel_a": kernel_a, "kernel_b": kernel_b, "mix": mix, "rows_of": rows_of}
    return kernel(from_source(source, name, __file__, scope))


_STEP = """
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
    return kernel(from_source(_STEP.format(name=name), name, __file__, scope))
