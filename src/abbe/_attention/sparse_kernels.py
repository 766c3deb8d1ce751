"""Kernels over the support of attention: sums of values, products with them, and the sums of the backward pass.

A support is a list of rows: `rows` (their numbers, head * queries + query, heads counted over the batch), `starts`
(where each begins, and the end), then `places` (keys) and `weights` of all rows. `shape` is (rows that share a key
head, keys). There are no matrix products: every sum runs over the support.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, uint64

from .._kernels.compiled import kernel
from .._kernels.sums import BLOCK, row_dot, sum_of_rows
from .._kernels.vector import ONE, ZERO, f32


@kernel
def dropout_factor(chances: Any, row: int, key: int) -> Any:
    """0 or 1 / keep: a hash of row and key (splitmix64), the same in forward and backward, in any order.

    `chances` is (upper and lower part of the seed, keep).
    """
    seed, keep = (uint64(chances[0]) << uint64(31)) + uint64(chances[1]), f32(chances[2])
    x = seed + uint64(row) * uint64(0x9E3779B97F4A7C15) + uint64(key) * uint64(0xD1B54A32D192ED03)
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    x = x ^ (x >> uint64(31))
    chance = float32(x >> uint64(40)) * f32(2.0**-24)
    return ONE / keep if chance < keep else ZERO


@kernel
def dot(a: Any, b: Any) -> Any:
    """Short vectors take one plain loop, which is a third faster than `row_dot`."""
    if a.shape[0] > BLOCK:
        return row_dot(a, b)
    total = ZERO
    for d in range(a.shape[0]):
        total += a[d] * b[d]
    return total


@kernel
def row_number(table: Any, r: int) -> Any:
    """Number of row r of a block. `table`: (queries, first query, first head, heads; all heads, all queries; group)."""
    head = r // table[0]
    head = table[2] + head // table[3] * table[4] + head % table[3]
    return head * table[5] + table[1] + r % table[0]


@kernel
def number_rows(rows: Any, tables: Any, ends: Any, start: int, stop: int) -> None:
    """The numbers of the rows of several blocks, which end at `ends`."""
    for b in range(start, stop):
        first = 0 if b == 0 else ends[b - 1]
        for r in range(first, ends[b]):
            rows[r] = row_number(tables[b], r - first)


@kernel
def sum_values(
    scores: Any, keys: Any, counts: Any, begins: Any, table: Any, value: Any, chances: Any, starts: Any, places: Any,
    weights: Any, out: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """Output of every row of a block, whose support is counts[r] weights and keys from begins[r] on.

    Copies the support to where it is kept, if `places` is not empty.
    """
    total = np.empty(value.shape[2], np.float64)
    for r in range(start, stop):
        count, row = counts[r], row_number(table, r)
        some = slice(begins[r], begins[r] + count)
        w, p = scores[some], keys[some]
        if places.shape[0] > 0:
            weights[starts[r] : starts[r] + count] = w
            places[starts[r] : starts[r] + count] = p
        if chances[2] < 1.0:
            for c in range(count):
                w[c] *= dropout_factor(chances, row, p[c])
        sum_of_rows(w, p, value[row // (table[5] * table[6])], total, out[row])


@kernel
def multiply_values(
    places: Any, starts: Any, rows: Any, grad: Any, value: Any, shape: Any, chances: Any, weights: Any,
    of_weights: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """of_weights = the gradient of the output times the values; dropout is applied to the weights."""
    for r in range(start, stop):
        row = rows[r]
        own, values = grad[row], value[row // shape[0]]
        for e in range(starts[r], starts[r + 1]):
            of_weights[e] = dot(own, values[places[e]])
        if chances[2] < 1.0:
            for e in range(starts[r], starts[r + 1]):
                factor = dropout_factor(chances, row, places[e])
                of_weights[e] *= factor
                weights[e] *= factor


@kernel
def uncap(
    grad: Any, places: Any, starts: Any, rows: Any, query: Any, key: Any, shape: Any, scale: Any, start: int, stop: int
) -> None:
    """The gradient through the soft cap: grad *= 1 - tanh(scale * query.key / cap)^2; `scale` is (scale, cap)."""
    for r in range(start, stop):
        own, keys = query[rows[r]], key[rows[r] // shape[0]]
        for e in range(starts[r], starts[r + 1]):
            bent = np.tanh(scale[0] * dot(own, keys[places[e]]) / scale[1])
            grad[e] *= ONE - bent * bent


@kernel
def sum_keys(
    grad: Any, places: Any, starts: Any, rows: Any, key: Any, shape: Any, scale: Any, out: Any, start: int, stop: int
) -> None:
    """Gradient to the queries: the keys of the support, each times the gradient to its logit."""
    total = np.empty(key.shape[2], np.float64)
    for r in range(start, stop):
        row = rows[r]
        own = out[row]
        some = slice(starts[r], starts[r + 1])
        sum_of_rows(grad[some], places[some], key[row // shape[0]], total, own)
        for d in range(own.shape[0]):
            own[d] *= scale[0]


@kernel
def transpose(
    places: Any, starts: Any, rows: Any, weights: Any, grad: Any, spans: Any, begins: Any, shape: Any, ends: Any,
    of_rows: Any, of_weights: Any, of_grad: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """The support by keys, for every key head: rows (within the key head), weights and gradients to logits.

    A counting sort. spans[h] are the ranges of rows of key head h, begins[h] is where its lists begin; afterwards
    ends[h, key] is where the list of a key ends and the next begins.
    """
    for h in range(start, stop):
        end = ends[h]
        end[:] = 0
        for s in range(spans.shape[1]):
            for e in range(starts[spans[h, s, 0]], starts[spans[h, s, 1]]):
                end[places[e]] += 1
        at = begins[h]
        for key in range(shape[1]):
            count = end[key]
            end[key] = at
            at += count
        first_row = h * shape[0]
        for s in range(spans.shape[1]):
            for r in range(spans[h, s, 0], spans[h, s, 1]):
                for e in range(starts[r], starts[r + 1]):
                    key = places[e]
                    at = end[key]
                    end[key] = at + 1
                    of_rows[at] = rows[r] - first_row
                    of_weights[at] = weights[e]
                    of_grad[at] = grad[e]


@kernel
def sum_queries(
    grad_key: Any, grad_value: Any, query: Any, grad: Any, begins: Any, ends: Any, of_rows: Any, of_weights: Any,
    of_grad: Any, scale: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """Add the contributions of the queries in its list to the gradients of every key and value."""
    keys = ends.shape[1]
    total = np.empty(max(query.shape[2], grad.shape[2]), np.float64)
    of_key, of_value = np.empty(query.shape[2], np.float32), np.empty(grad.shape[2], np.float32)
    for r in range(start, stop):
        h, key = r // keys, r % keys
        some = slice(begins[h] if key == 0 else ends[h, key - 1], ends[h, key])
        sum_of_rows(of_grad[some], of_rows[some], query[h], total, of_key)
        sum_of_rows(of_weights[some], of_rows[some], grad[h], total, of_value)
        for d in range(of_key.shape[0]):
            grad_key[r, d] += scale[0] * of_key[d]
        for d in range(of_value.shape[0]):
            grad_value[r, d] += of_value[d]
