"""Sums over gathered rows: a few rows of a matrix, each times its weight.

As in `sums`, float32 within a block and float64 across blocks, so that the error does not grow with the length.
"""

from __future__ import annotations

from typing import Any

from .compiled import kernel
from .vector import ZERO, f32

GATHERED = 48  # 12 passes of four rows: 12 terms per float32 sum, as in `sums`


@kernel
def sum_of_rows(weights: Any, places: Any, rows: Any, total: Any, output: Any) -> None:
    """output = sum over c of weights[c] * rows[places[c]]; `total` is float64 scratch of the same width."""
    count = places.shape[0]
    if count <= GATHERED:
        sum_of_some(weights, places, rows, output)
        return
    total[:] = 0.0
    for start in range(0, count, GATHERED):
        stop = min(start + GATHERED, count)
        sum_of_some(weights[start:stop], places[start:stop], rows, output)
        for d in range(output.shape[0]):
            total[d] += output[d]
    for d in range(output.shape[0]):
        output[d] = f32(total[d])


@kernel
def sum_of_some(weights: Any, places: Any, rows: Any, output: Any) -> None:
    """Four rows at a time, since each pass reads and writes the sum."""
    output[:] = ZERO
    count = places.shape[0]
    whole = count - count % 4
    for c in range(0, whole, 4):
        w, x, y, z = weights[c], weights[c + 1], weights[c + 2], weights[c + 3]
        first, second, third, fourth = rows[places[c]], rows[places[c + 1]], rows[places[c + 2]], rows[places[c + 3]]
        for d in range(output.shape[0]):
            output[d] += (w * first[d] + x * second[d]) + (y * third[d] + z * fourth[d])
    for c in range(whole, count):
        w, first = weights[c], rows[places[c]]
        for d in range(output.shape[0]):
            output[d] += w * first[d]
