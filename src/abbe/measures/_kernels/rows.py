"""Facts of float32 rows, and norms of their Jacobians."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._kernels.compiled import inlined, kernel
from ..._kernels.sums import BLOCK, LONG_BLOCK, Row, block_end, row_dot, row_sum, sum_over_keys
from ..._kernels.vector import NEG_INF, ONE, POS_INF, TINY, ZERO, f32, larger, log, maximum, minimum

_TWO, _FOUR = f32(2.0), f32(4.0)
_STOP = f32(2e-7)  # of an eigenvalue: steps smaller than this are rounding
_MOST_STEPS = 60  # a handful is enough; the bound is for rows in which rounding keeps the steps going


@kernel
def row_facts(logits: Any, weights: Any, whole: Any, sums: Any, start: int, stop: int) -> None:
    """whole = count, first, last; sums = total, squares, sum w ln w, largest, smallest, at the first key, spread,
    stray."""
    for r in range(start, stop):
        keys = logits.shape[1]
        first, last = 0, keys
        while last > 0 and logits[r, last - 1] == NEG_INF:
            last -= 1
        while first < last and logits[r, first] == NEG_INF:
            first += 1
        used = up_to_block(last, keys, BLOCK)
        whole[r, 0] = int(visible_facts(logits[r, :used], weights[r, :used], sums[r]))
        # Zeros in a correct row; an error must show in both numbers.
        sums[r, 0] += f32(row_sum(weights[r, used:]))
        sums[r, 7] = maximum(sums[r, 7], largest_size(weights[r, used:]))
        whole[r, 1] = first if last > 0 else 0
        whole[r, 2] = last
        sums[r, 5] = weights[r, first] if last > 0 else ZERO
        if last == 0:
            sums[r, 3], sums[r, 4], sums[r, 6] = ZERO, ZERO, ZERO


@inlined
def up_to_block(last: int, keys: int, block: int) -> Any:
    """Keys up to the end of the block of the last visible one: sums over them round like those over all keys, since the
    other blocks add exact zeros."""
    return min(keys, (last + block - 1) // block * block)


@kernel
def largest_size(weights: Any) -> Any:
    largest = ZERO
    for j in range(weights.shape[0]):
        largest = maximum(largest, abs(weights[j]))
    return largest


@kernel
def visible_facts(row: Any, weights: Any, out: Any) -> Any:
    """Fills all entries except that of the first key; returns the number of visible keys."""
    keys, start, count, total, squares, moment = row.shape[0], 0, 0.0, 0.0, 0.0, 0.0
    largest, smallest, top, bottom, stray = NEG_INF, POS_INF, NEG_INF, POS_INF, ZERO
    while start < keys:
        stop = block_end(start, keys, BLOCK)
        row_, weights_ = row[start:stop], weights[start:stop]
        part_count, part, part_squares, part_moment = ZERO, ZERO, ZERO, ZERO
        for j in range(stop - start):
            there, w = row_[j] != NEG_INF, weights_[j]
            part_count += ONE if there else ZERO
            part += w
            part_squares += w * w
            part_moment += w * log(w if w > TINY else ONE)
            largest = maximum(largest, w if there else NEG_INF)
            smallest = minimum(smallest, w if there else POS_INF)
            stray = maximum(stray, ZERO if there else abs(w))
            top = maximum(top, row_[j])
            bottom = minimum(bottom, row_[j] if there else POS_INF)
        count += part_count
        total += part
        squares += part_squares
        moment += part_moment
        start = stop
    out[0], out[1], out[2], out[3], out[4] = f32(total), f32(squares), f32(moment), largest, smallest
    out[6], out[7] = top - bottom, stray
    return count


@kernel
def rank_one_norms(
    logits: Any, p: Any, missing: Any, directions: Any, last: Any, out: Any, start: int, stop: int
) -> None:  # fmt: skip
    """out = largest eigenvalue of diag(p) - p p^T, and the length of its product with the unit direction.

    last[r] is one past the last visible key: beyond, p is 0.
    """
    rest = np.empty(p.shape[1], np.float32)
    for r in range(start, stop):
        used = up_to_block(last[r], p.shape[1], LONG_BLOCK)
        if used == 0:
            out[r, 0], out[r, 1] = ZERO, ZERO
            continue
        out[r, 0] = largest_eigenvalue(p[r, :used], missing[r], rest[:used])
        out[r, 1] = moved_length(logits[r, :used], p[r, :used], directions[r % directions.shape[0], :used])


@sum_over_keys(LONG_BLOCK, sums=2, rounded=False, within=inlined)
def squares_moved(j: int, row: Row, p: Row, direction: Row, dot: Any) -> Any:
    g = direction[j] if row[j] != NEG_INF else ZERO
    change = p[j] * (direction[j] - dot)
    return g * g, change * change


@kernel
def moved_length(row: Any, p: Any, direction: Any) -> Any:
    square, moved = squares_moved(row, p, direction, row_dot(p, direction))
    return f32(np.sqrt(moved / square) if square > 0.0 else 0.0)


@kernel
def largest_eigenvalue(p: Any, missing: Any, rest: Any) -> Any:
    """See `_spectral`; `rest` is scratch space for a row."""
    top, tied, second = ZERO, ZERO, ZERO
    for j in range(p.shape[0]):
        top = maximum(top, p[j])
    for j in range(p.shape[0]):
        rest[j] = p[j] if p[j] < top else ZERO
        tied += ONE if p[j] == top else ZERO
        second = maximum(second, rest[j])
    if tied > ONE or top < _STOP:
        return top
    width = top - second
    # Above the root, from where the steps descend; not 1 - top, which is 0 in a peaked row.
    x = f32(missing + row_sum(rest)) * width
    for _ in range(_MOST_STEPS):
        if not x > ZERO:
            break
        value, s = sums_of_shares(rest, x, second, missing)
        r, before = maximum(value - s, ZERO) / x, x
        b = top + s - r * width
        root = np.sqrt(b * b + _FOUR * r * s * width)
        # The form of the root that subtracts no nearly equal numbers.
        x = _TWO * s * width / (b + root) if b > ZERO else (root - b) / (_TWO * r)
        if abs(x - before) <= _STOP * (second + x):
            break
    return second + x


@sum_over_keys(LONG_BLOCK, sums=2, rounded=False, within=inlined)
def shares(j: int, rest: Row, x: Any, second: Any) -> Any:
    share = x / (x + (second - rest[j]))
    return rest[j] * share, rest[j] * share * share


@kernel
def sums_of_shares(rest: Any, x: Any, second: Any, missing: Any) -> Any:
    """sum p_i c_i and sum p_i c_i^2, c_i = x/(x + p_2 - p_i), with the sink as a key at 0."""
    value, s = shares(rest, x, second)
    share = x / (x + second)
    return f32(value + missing * share), f32(s + missing * share * share)


@kernel
def formula_rows(
    logits: Any, weights: Any, dots: Any, squares: Any, sums: Any, whole: Any, sizes: Any, place: Any, out: Any,
    start: int, stop: int,
) -> None:  # fmt: skip
    """out[r, g] = ((n-N)/n) sum_i ||mu_i|| of the N = sizes[g]; 0 where the set leaves no key out.

    dots[r] = x . z, squares (group, key) = ||x||^2, sums[r] = ||z||^2; place = queries, heads per group.
    """
    keys = weights.shape[1]
    own_, with_, shown_ = np.empty(keys, np.float32), np.empty(keys, np.float32), np.empty(keys, np.float32)
    for r in range(start, stop):
        group = r // place[0] // place[1]
        count, low, high = whole[r, 0], whole[r, 1], whole[r, 2]
        here = high - low
        own, with_sum, shown = own_[:here], with_[:here], shown_[:here]
        row, a, t, length = logits[r, low:high], weights[r, low:high], dots[r, low:high], squares[group, low:high]
        for j in range(here):
            own[j], with_sum[j] = a[j] * a[j] * length[j], a[j] * t[j]
            shown[j] = ZERO if row[j] == NEG_INF else ONE
        for g in range(len(sizes)):
            out[r, g] = formula_of_size(own, with_sum, shown, sums[r], count, sizes[g])


@sum_over_keys(LONG_BLOCK, rounded=False, within=inlined)
def lengths(j: int, own: Row, with_sum: Row, shown: Row, of_own: Any, of_sum: Any, of_both: Any) -> Any:
    # A factor makes an invisible key count 0: a condition would keep the loop from becoming vector code.
    return np.sqrt(larger(of_sum + of_own * own[j] - of_both * with_sum[j], ZERO)) * shown[j]


@kernel
def formula_of_size(own: Any, with_sum: Any, shown: Any, square: Any, count: int, size: int) -> Any:
    """mu_i = (1 + c) y_i - c z with c = N/(n-1)."""
    if size >= count:
        return ZERO
    c = f32(size) / f32(count - 1)
    of_own, of_sum, of_both = (ONE + c) * (ONE + c), c * c * square, f32(2.0) * c * (ONE + c)
    total = lengths(own, with_sum, shown, of_own, of_sum, of_both)
    return f32(total * (count - size) / count)
