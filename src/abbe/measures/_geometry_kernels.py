"""The geometry of all sets of a row, in passes over float32 rows that stay in cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._kernels.compiled import kernel
from .._kernels.sums import LONG_BLOCK, PANEL, ROWS, block_end, row_dot, score_tile
from .._kernels.vector import NEG_INF, ONE, POS_INF, ZERO, copy_row, f32, larger, maximum, minimum, smaller
from ._row_kernels import running_sums

_TWO = f32(2.0)
_NEAR = f32(0.15)  # of ||s||: a key this close to s is measured again, as a difference of large numbers loses digits
_FAINT = f32(1e-20)  # ||s||^2: products of weights and sums this small lose their digits, or underflow
_FAR_OFF = f32(1e15)  # times s: farther than all members, and its square is still finite
_ROUNDING = 2e-6  # of ||x||^2 + ||z||^2: more than dot products of up to 2,000 numbers lose
_ROUNDING_PER_NUMBER = 1e-9  # beyond that: the error of a sum grows with its length


@kernel
def set_geometry(
    sums: Any, logits: Any, weights: Any, all_x: Any, packed: Any, all_squares: Any, whole: Any, selected: Any,
    random: Any, sizes: Any, parts: Any, limits: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """parts[r] = the fields of SetGeometry for both orders and every N, limits[r] = those of LimitTerms.

    sums[r] becomes the weighted sums of the first N keys of both orders, for every N; its last column is that of all.
    Their products with all vectors are computed one row at a time, so that they stay in the cache of a core.
    """
    keys, grid = weights.shape[1], len(sizes)
    # Single rows, not one array of two dimensions: only slices of a row are known to be contiguous.
    near, close = np.empty(selected.shape[1], np.float32), np.empty(selected.shape[1], np.float32)
    own_, over_, shown_ = np.empty(keys, np.float32), np.empty(keys, np.float32), np.empty(keys, np.float32)
    outside_, blocked_, far_ = np.empty(keys, np.float32), np.empty(keys, np.float32), np.empty(keys, np.float32)
    raised_, raised_own_ = np.empty(keys, np.float32), np.empty(keys, np.float32)
    columns, depth = sums.shape[1:]
    filled = (columns + ROWS - 1) // ROWS * ROWS
    tile, turned = np.empty((filled, keys + 2 * PANEL), np.float32), np.empty(filled * depth, np.float32)
    for r in range(start, stop):
        group = r * all_x.shape[0] // weights.shape[0]
        x, squares = all_x[group], all_squares[group]
        count, low, high = whole[r, 0], whole[r, 1], whole[r, 2]
        running_sums(weights[r], x, selected[r], sizes, count, sums[r, :grid])
        running_sums(weights[r], x, random[r], sizes, count, sums[r, grid:-1])
        before = low % PANEL
        score_tile(sums[r], packed[group], low - before, high, turned, tile)
        a, z, here = weights[r, low:high], sums[r, 2 * grid], high - low
        own, over, shown = own_[:here], over_[:here], shown_[:here]
        outside, blocked, far = outside_[:here], blocked_[:here], far_[:here]
        prepare(logits[r, low:high], a, squares[low:high], own, over, shown)
        for which in range(2):
            order = random[r] if which else selected[r]
            copy_row(shown, outside)
            for j in range(here):
                blocked[j] = ZERO if shown[j] > ZERO else POS_INF
            done = 0
            for g in range(grid):
                if sizes[g] >= count:
                    parts[r, which, g] = ZERO
                    continue
                for k in range(done, sizes[g]):
                    outside[order[k] - low], blocked[order[k] - low] = ZERO, POS_INF
                done, column = sizes[g], which * grid + g
                t, s, own_weights, own_squares = tile[column, before : before + here], sums[r, column], a, own
                faint, total, net = row_dot(s, s) < _FAINT, ZERO, ZERO
                if faint:
                    total, net = total_outside(t, a, own, outside, row_dot(s, s)), net_length(z, s)
                    own_weights, own_squares = raised_[:here], raised_own_[:here]
                    raise_set(t, a, squares[low:high], s, own_weights, own_squares)
                out = parts[r, which, g]
                one_set(
                    t, own_weights, x[low:high], order[:done], low, s, z, own_squares, over, outside, blocked, far,
                    near[:done], close[:done], out,
                )  # fmt: skip
                if faint:
                    out[0], out[1] = total, net
        t = tile[2 * grid, before : before + here]
        limit_terms(t, a, squares[low:high], selected[r], low, sizes, count, z, shown, limits[r])


@kernel
def prepare(row: Any, a: Any, squares: Any, own: Any, over: Any, shown: Any) -> None:
    """own = ||y||^2, over = the sign of a over ||x|| (0 if y = 0), shown = 1 at visible keys."""
    for j in range(row.shape[0]):
        own[j] = a[j] * a[j] * squares[j]
        some = squares[j] > ZERO and a[j] != ZERO
        inverse = ONE / np.sqrt(squares[j] if some else ONE)
        over[j] = (inverse if a[j] > ZERO else -inverse) if some else ZERO
        shown[j] = ZERO if row[j] == NEG_INF else ONE


@kernel
def raise_set(t: Any, a: Any, squares: Any, s: Any, raised: Any, own: Any) -> None:
    """Scale up a set of faint weights, such as a random one of a peaked row: s, t = x . s, the weights and their
    ||y||^2. Counts stay the same, lengths do not."""
    largest = ZERO
    for f in range(s.shape[0]):
        largest = maximum(largest, abs(s[f]))
    # A power of two, which is exact; the largest one where s = 0.
    factor = f32(math.ldexp(1.0, min(-math.frexp(largest)[1], 126) if largest > ZERO else 126))
    for f in range(s.shape[0]):
        s[f] *= factor
    for j in range(t.shape[0]):
        t[j] *= factor
        raised[j] = maximum(minimum(a[j] * factor, _FAR_OFF), -_FAR_OFF)
        own[j] = raised[j] * raised[j] * squares[j]


@kernel
def total_outside(t: Any, a: Any, own: Any, outside: Any, square: Any) -> Any:
    """The sum of ||y - s|| over the keys outside."""
    total = 0.0
    for j in range(t.shape[0]):
        total += np.sqrt(larger(own[j] - _TWO * a[j] * t[j] + square, ZERO)) * outside[j]
    return f32(total)


@kernel
def net_length(z: Any, s: Any) -> Any:
    """||z - 2 s||"""
    net = ZERO
    for f in range(s.shape[0]):
        net += (z[f] - _TWO * s[f]) * (z[f] - _TWO * s[f])
    return np.sqrt(net)


@kernel
def one_set(
    t: Any, a: Any, x: Any, order: Any, low: int, s: Any, z: Any,
    own: Any, over: Any, outside: Any, blocked: Any, far: Any, near: Any, close: Any, out: Any,
) -> None:  # fmt: skip
    """The fields of SetGeometry for one set; t = x . s. Visible keys that are not members have outside = 1 and
    blocked = 0, the others 0 and +inf: a loop with conditions would not become vector code."""
    square = row_dot(s, s)
    length = np.sqrt(square)
    farthest = member_offsets(t, a, own, order, low, square, near)
    lowest = member_cosines(t, over, order, low, length, close)
    total, nearest, intruders, best, above = pass_outside(
        t, a, own, over, outside, blocked, length, square, farthest, lowest
    )
    # A key outside is so near to s that its distance, a difference of large numbers, has lost its digits.
    if nearest + square < _NEAR * _NEAR * square:
        farthest = member_distances(a, x, order, low, s, length, near)
        total, nearest, intruders = measure_again(t, a, x, s, own, blocked, length, farthest, far)
    closed, strict, closed_cosine, strict_cosine = ZERO, ZERO, ZERO, ZERO
    for k in range(near.shape[0]):
        closed += ONE if near[k] <= nearest else ZERO
        strict += ONE if near[k] < nearest else ZERO
        closed_cosine += ONE if close[k] >= best else ZERO
        strict_cosine += ONE if close[k] > best else ZERO
    out[0], out[1], out[2], out[3], out[4] = total, net_length(z, s), closed, strict, intruders
    out[5], out[6], out[7] = closed_cosine, strict_cosine, above


@kernel
def member_offsets(t: Any, a: Any, own: Any, order: Any, low: int, square: Any, out: Any) -> Any:
    """||y_i - s||^2 - ||s||^2 of the members; returns the largest.

    Keys of little weight lie at almost the same distance from s. Adding ||s||^2, which they share, would round their
    differences away, so distances are compared without it.
    """
    farthest = NEG_INF
    for k in range(len(order)):
        j = order[k] - low
        out[k] = own[j] - _TWO * a[j] * t[j]
        farthest = maximum(farthest, out[k])
    if len(order) == 1:  # the sum is the member itself
        out[0], farthest = -square, -square
    return farthest


@kernel
def distance_to(a: Any, x: Any, s: Any) -> Any:
    """||a x - s|| by differences."""
    total = ZERO
    for f in range(s.shape[0]):
        difference = a * x[f] - s[f]
        total += difference * difference
    return np.sqrt(total)


@kernel
def member_distances(a: Any, x: Any, order: Any, low: int, s: Any, length: Any, out: Any) -> Any:
    """||y_i - s|| of the members; returns the largest. Exact for y_i = 0, where ties with keys outside are likely."""
    farthest = ZERO
    for k in range(len(order)):
        j = order[k] - low
        out[k] = distance_to(a[j], x[j], s) if a[j] != ZERO else length
        farthest = maximum(farthest, out[k])
    if len(order) == 1:  # the sum is the member itself
        out[0], farthest = ZERO, ZERO
    return farthest


@kernel
def member_cosines(t: Any, over: Any, order: Any, low: int, length: Any, out: Any) -> Any:
    """||s|| cos(y_i, s) of the members; returns the smallest."""
    lowest = POS_INF
    for k in range(len(order)):
        j = order[k] - low
        out[k] = minimum(t[j] * over[j], length)
        lowest = minimum(lowest, out[k])
    if len(order) == 1 and over[order[0] - low] != ZERO:
        out[0], lowest = length, length
    return lowest


@kernel
def pass_outside(
    t: Any, a: Any, own: Any, over: Any, outside: Any, blocked: Any, length: Any, square: Any, farthest: Any,
    lowest: Any,
) -> Any:  # fmt: skip
    """Over the keys outside: sum of ||y - s||, minimum of ||y - s||^2 - ||s||^2, how many are within `farthest`; best
    cosine, how many reach `lowest`."""
    keys, start, total, nearest, intruders, best, above = t.shape[0], 0, 0.0, POS_INF, ZERO, NEG_INF, ZERO
    while start < keys:
        stop = block_end(start, keys, LONG_BLOCK)
        t_, a_, own_, over_ = t[start:stop], a[start:stop], own[start:stop], over[start:stop]
        outside_, blocked_, part = outside[start:stop], blocked[start:stop], ZERO
        for j in range(stop - start):
            d = own_[j] - _TWO * a_[j] * t_[j]
            part += np.sqrt(larger(d + square, ZERO)) * outside_[j]
            d += blocked_[j]
            nearest = smaller(nearest, d)
            intruders += ONE if d <= farthest else ZERO
            c = smaller(t_[j] * over_[j], length) - blocked_[j]
            best = larger(best, c)
            above += ONE if c >= lowest else ZERO
        total += part
        start = stop
    return f32(total), nearest, intruders, best, above


@kernel
def measure_again(t: Any, a: Any, x: Any, s: Any, own: Any, blocked: Any, length: Any, farthest: Any, far: Any) -> Any:
    """Sum, smallest distance and count of the keys outside; the distances of those close to s by differences."""
    square = length * length
    for j in range(t.shape[0]):
        far[j] = np.sqrt(larger(own[j] - _TWO * a[j] * t[j] + square, ZERO)) + blocked[j]
    for j in range(far.shape[0]):
        if far[j] < _NEAR * length:
            far[j] = distance_to(a[j], x[j], s)
    keys, start, total, nearest, intruders = far.shape[0], 0, 0.0, POS_INF, ZERO
    while start < keys:
        stop = block_end(start, keys, LONG_BLOCK)
        far_, part = far[start:stop], ZERO
        for j in range(stop - start):
            part += far_[j] if far_[j] < POS_INF else ZERO
            nearest = smaller(nearest, far_[j])
            intruders += ONE if far_[j] <= farthest else ZERO
        total += part
        start = stop
    return f32(total), nearest, intruders


@kernel
def limit_terms(
    t: Any, a: Any, squares: Any, order: Any, low: int, sizes: Any, count: int, z: Any, shown: Any, out: Any
) -> None:  # fmt: skip
    """The fields of LimitTerms for every N; t = x . z, and the radii are rounded up."""
    square, widest = row_dot(z, z), ZERO
    up = ONE + f32(max(_ROUNDING, _ROUNDING_PER_NUMBER * z.shape[0]))
    for j in range(t.shape[0]):
        # Rounded up: a proved limit must not fall below the truth.
        radius = (squares[j] + square) * up - _TWO * t[j]
        widest = maximum(widest, radius if shown[j] > ZERO else ZERO)
    mass, longest, inner, done = 0.0, ZERO, ZERO, 0
    for g in range(len(sizes)):
        if sizes[g] >= count:
            out[g] = ZERO
            continue
        for k in range(done, sizes[g]):
            j = order[k] - low
            mass += a[j]
            longest = maximum(longest, squares[j])
            inner = maximum(inner, (squares[j] + square) * up - _TWO * t[j])
        done = sizes[g]
        out[g, 0], out[g, 1], out[g, 2] = f32(mass), np.sqrt(longest), np.sqrt(widest) + np.sqrt(inner)
