"""Two maps of the same rows, mixed while both are in cache: share * a + (1 - share) * b, and its gradient."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray, types

from ..._kernels.compiled import from_source, kernel
from ..._kernels.entries import as_pointer
from ..._kernels.vector import ONE

_TILE = 1 << 14  # numbers of one array that both maps work on before they are mixed

_FORWARD = """
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

_BACKWARD = """
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
    return _blended(_FORWARD, kernel_a, kernel_b)


def backward(kernel_a: Any, kernel_b: Any) -> Any:
    return _blended(_BACKWARD, kernel_a, kernel_b)


@cache
def _blended(template: str, kernel_a: Any, kernel_b: Any) -> Any:
    """One kernel per pair, since a kernel that takes others as arguments cannot be cached."""
    parts = [f"{k.py_func.__module__.rpartition('.')[2]}_{k.py_func.__name__}" for k in (kernel_a, kernel_b)]
    name = "_and_".join(["blend", *parts])
    source = template.format(name=name, tile=_TILE)
    scope = {"np": np, "kernel_a": kernel_a, "kernel_b": kernel_b, "mix": mix, "rows_of": rows_of}
    return kernel(from_source(source, name, __file__, scope))
