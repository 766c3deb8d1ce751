"""Facts of float32 rows, orders of their keys, and norms of their Jacobians."""
# mypy: allow-untyped-decorators

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int32

from ..._kernels.compiled import inlined, kernel
from ..._kernels.sums import BLOCK, LONG_BLOCK, Row, block_end, row_dot, row_sum, sum_over_keys
from ..._kernels.vector import NAN, NEG_INF, ONE, POS_INF, TINY, ZERO, bits, f32, log, maximum, minimum

_TWO, _FOUR = f32(2.0), f32(4.0)
_STOP = f32(2e-7)  # of an eigenvalue: steps smaller than this are rounding
_MOST_STEPS = 60  # a handful is taken; the bound is for rows in which rounding keeps steps alive
_STRIDE = 64  # four vectors of 16: what a loop over codes takes at once
_INVISIBLE = int32(-0x80000000)  # the code of an invisible key, below those of all others


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
        # Zeros, in a row that is right; what is wrong must be seen by both numbers.
        sums[r, 0] += f32(row_sum(weights[r, used:]))
        sums[r, 7] = maximum(sums[r, 7], largest_size(weights[r, used:]))
        whole[r, 1] = first if last > 0 else 0
        whole[r, 2] = last
        sums[r, 5] = weights[r, first] if last > 0 else ZERO
        if last == 0:
            sums[r, 3], sums[r, 4], sums[r, 6] = ZERO, ZERO, ZERO


@inlined
def up_to_block(last: int, keys: int, block: int) -> Any:
    """Keys up to the end of the block that holds the last visible one: sums over them have the rounding of those over
    all keys, since the other blocks add exact zeros."""
    return min(keys, (last + block - 1) // block * block)


@kernel
def largest_size(weights: Any) -> Any:
    largest = ZERO
    for j in range(weights.shape[0]):
        largest = maximum(largest, abs(weights[j]))
    return largest


@kernel
def visible_facts(row: Any, weights: Any, out: Any) -> Any:
    """Fills all but the entry of the first key; returns the number of visible keys."""
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
def weight_order(logits: Any, weights: Any, order: Any, start: int, stop: int) -> None:
    """The visible keys of largest weight, in order, earlier ones first among equals; 0 beyond the visible keys."""
    all_codes = np.empty(in_strides(logits.shape[1]), np.int32)
    chosen = np.empty(logits.shape[1] + 1, np.int64)
    chosen_codes = np.empty(in_strides(logits.shape[1] + 1), np.int32)
    ranks = np.empty(in_strides(logits.shape[1]), np.float32)
    for r in range(start, stop):
        keys = logits.shape[1]
        while keys > 0 and logits[r, keys - 1] == NEG_INF:
            keys -= 1
        codes = all_codes[: in_strides(keys)]
        count, low, high = weight_codes(logits[r, :keys], weights[r, :keys], codes)
        size = min(count, order.shape[1])
        order[r, size:] = 0
        if size == 0:
            continue
        fill_up(codes, keys)
        cut = size_th_largest(codes, size, low, high)
        above = int(how_many(codes, cut))
        at, ties = 0, size - int(how_many(codes, cut + 1)) if above > size else size
        for j in range(keys):
            # Written before it is known whether it counts: no branch that could be mispredicted.
            chosen[at], chosen_codes[at] = j, codes[j]
            at += 1 if codes[j] > cut or (codes[j] == cut and ties > 0) else 0
            ties -= 1 if codes[j] == cut else 0
        fill_up(chosen_codes[: in_strides(size)], size)
        count_before(chosen_codes[: in_strides(size)], size, ranks)
        for k in range(size):
            order[r, int(ranks[k])] = chosen[k]


@inlined
def in_strides(size: int) -> Any:
    """The next multiple of what a vector loop takes at once: the rest of a row would be taken one by one."""
    return (size + _STRIDE - 1) // _STRIDE * _STRIDE


@kernel
def fill_up(codes: Any, size: int) -> None:
    """Codes below all others after the first `size`."""
    for j in range(size, codes.shape[0]):
        codes[j] = _INVISIBLE


@kernel
def count_before(codes: Any, size: int, ranks: Any) -> None:
    """ranks = how many of the first `size` codes come before each of them.

    By comparing all with all, which is vector code and beats a sort of some hundred. Four are counted at a time, since
    each pass reads and writes the ranks; the codes after `size` are below all others and change nothing.
    """
    ranks[: codes.shape[0]] = ZERO
    for j in range(0, size, 4):
        first, second, third, fourth = codes[j], codes[j + 1], codes[j + 2], codes[j + 3]
        for k in range(codes.shape[0]):
            code = codes[k]
            one = (ONE if first > code else ZERO) + (ONE if second > code else ZERO)
            two = (ONE if third > code else ZERO) + (ONE if fourth > code else ZERO)
            ranks[k] += one + two
    total = 0
    for k in range(size):
        total += int(ranks[k])
    if 2 * total == size * (size - 1):
        return
    for k in range(size):  # some are equal: the earlier ones come first
        for j in range(k):
            ranks[k] += ONE if codes[j] == codes[k] else ZERO


@kernel
def weight_codes(row: Any, weights: Any, codes: Any) -> Any:
    """Integers that order like the weights, the least of all at invisible keys; number, least and largest of the rest.

    The bits of a float order like an integer, those of negative floats in reverse.
    """
    count, low, high = ZERO, int32(0x7FFFFFFF), int32(-0x7FFFFFFF)
    for j in range(row.shape[0]):
        pattern = bits(weights[j])
        there = row[j] != NEG_INF
        code = int32(pattern ^ int32((pattern >> int32(31)) & int32(0x7FFFFFFF)))
        # -0 and 0 are equal, but not their bits. (To add 0 does nothing: sums may ignore the sign of a zero.)
        code = int32(0) if code == int32(-1) else code
        codes[j] = code if there else _INVISIBLE
        count += ONE if there else ZERO
        low = min(low, code if there else int32(0x7FFFFFFF))
        high = max(high, codes[j])
    return int(count), int(low), int(high)


@kernel
def size_th_largest(codes: Any, size: int, low: int, high: int) -> int:
    """The `size`-th largest code, by halving the interval; some passes over a row in cache beat a sort."""
    high += 1
    while high - low > 1:
        middle = low + (high - low) // 2
        above = int(how_many(codes, middle))
        if above >= size:
            low = middle
        else:
            high = middle
        if above == size:  # no code between `middle` and the one that is sought makes a difference
            break
    return low


@kernel
def how_many(codes: Any, least: int) -> Any:
    """Codes that are at least `least`."""
    count, bound = ZERO, int32(least)
    for j in range(codes.shape[0]):
        count += ONE if codes[j] >= bound else ZERO
    return count


@kernel
def set_masses(weights: Any, order: Any, sizes: Any, masses: Any, moments: Any, start: int, stop: int) -> None:
    """Sum of w and of w ln w over the first N keys of an order, for every N; NaN from a negative weight on.

    An order that is shorter than N counts as a whole.
    """
    terms = np.empty(order.shape[1], np.float32)
    chosen = np.empty(order.shape[1], np.float32)
    for r in range(start, stop):
        for k in range(order.shape[1]):
            chosen[k] = weights[r, order[r, k]]
        for k in range(order.shape[1]):
            w = chosen[k]
            terms[k] = w * log(w if w > TINY else ONE) if w >= ZERO else NAN
        done, mass, moment = 0, 0.0, 0.0
        for g in range(len(sizes)):
            for k in range(done, min(sizes[g], order.shape[1])):
                mass += chosen[k]
                moment += terms[k]
            done = max(done, min(sizes[g], order.shape[1]))
            masses[r, g], moments[r, g] = mass, moment


@kernel
def random_order(logits: Any, draws: Any, order: Any, start: int, stop: int) -> None:
    """The start of a random order of the visible keys, by exchanges (Fisher and Yates)."""
    keys = logits.shape[1]
    places = np.empty(keys, np.int64)
    for r in range(start, stop):
        count = 0
        for j in range(keys):
            places[count] = j
            count += 1 if logits[r, j] != NEG_INF else 0
        for k in range(order.shape[1]):
            if k >= count:
                order[r, k] = 0
                continue
            # A draw just below 1 may round up to count - k.
            other = k + min(int(draws[r, k] * (count - k)), count - k - 1)
            chosen = places[other]
            places[other] = places[k]
            order[r, k] = chosen


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
    """See `_spectral`; `rest` is room for a row."""
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
    # Above the root, from where the steps come down; not 1 - top, which is 0 in a peaked row.
    x = f32(missing + row_sum(rest)) * width
    for _ in range(_MOST_STEPS):
        if not x > ZERO:
            break
        value, s = sums_of_shares(rest, x, second, missing)
        r, before = maximum(value - s, ZERO) / x, x
        b = top + s - r * width
        root = np.sqrt(b * b + _FOUR * r * s * width)
        # The form of the root without a difference of equal numbers.
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
