"""Compiled passes over float32 rows: facts, norms of Jacobians, orders of keys, and sums over the first of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import int32

from .._kernels.compiled import inlined, kernel
from .._kernels.sums import BLOCK, LONG_BLOCK, Row, block_end, row_dot, row_sum, sum_over_keys
from .._kernels.vector import NAN, NEG_INF, ONE, POS_INF, TINY, ZERO, bits, f32, larger, log, maximum, minimum

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


_STRIDE = 64  # codes per step of a loop: four vectors of 16
_LARGE, _LN_LARGE = f32(2.0**64), f32(64 * math.log(2))  # times this, every weight is a normal number
_INVISIBLE = int32(-0x80000000)  # the code of an invisible key, below those of all others


@kernel
def weight_order(logits: Any, weights: Any, order: Any, start: int, stop: int) -> None:
    """The visible keys of largest weight, in order, the earlier of equal ones first; 0 beyond the visible keys."""
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
            # Written before it is known whether the key counts: no branch to mispredict.
            chosen[at], chosen_codes[at] = j, codes[j]
            at += 1 if codes[j] > cut or (codes[j] == cut and ties > 0) else 0
            ties -= 1 if codes[j] == cut else 0
        fill_up(chosen_codes[: in_strides(size)], size)
        count_before(chosen_codes[: in_strides(size)], size, ranks)
        for k in range(size):
            order[r, int(ranks[k])] = chosen[k]


@inlined
def in_strides(size: int) -> Any:
    """Rounded up to the stride of a vector loop, which would take a remainder one by one."""
    return (size + _STRIDE - 1) // _STRIDE * _STRIDE


@kernel
def fill_up(codes: Any, size: int) -> None:
    """Codes below all others after the first `size`."""
    for j in range(size, codes.shape[0]):
        codes[j] = _INVISIBLE


@kernel
def count_before(codes: Any, size: int, ranks: Any) -> None:
    """ranks = how many of the first `size` codes come before each of them.

    By comparing all with all, which is vector code and beats sorting some hundred. Four are counted at a time, since
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
    """Integers ordered like the weights, the least at invisible keys; returns number, least and largest of the others.

    The bits of floats order like integers, those of negative floats in reverse.
    """
    count, low, high = ZERO, int32(0x7FFFFFFF), int32(-0x7FFFFFFF)
    for j in range(row.shape[0]):
        pattern = bits(weights[j])
        there = row[j] != NEG_INF
        code = int32(pattern ^ int32((pattern >> int32(31)) & int32(0x7FFFFFFF)))
        # -0 and 0 are equal, but not their bits. (Adding 0 does not help: sums may ignore the sign of a zero.)
        code = int32(0) if code == int32(-1) else code
        codes[j] = code if there else _INVISIBLE
        count += ONE if there else ZERO
        low = min(low, code if there else int32(0x7FFFFFFF))
        high = max(high, codes[j])
    return int(count), int(low), int(high)


@kernel
def size_th_largest(codes: Any, size: int, low: int, high: int) -> int:
    """The `size`-th largest code, by bisection; some passes over a row in cache beat a sort."""
    high += 1
    while high - low > 1:
        middle = low + (high - low) // 2
        above = int(how_many(codes, middle))
        if above >= size:
            low = middle
        else:
            high = middle
        if above == size:  # no code lies between `middle` and the one sought
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
    """Sum of w and of w ln w over the first N keys of an order (all if it is shorter), for every N.

    The second is NaN from a negative weight on.
    """
    logs = np.empty(order.shape[1], np.float32)
    chosen = np.empty(order.shape[1], np.float32)
    for r in range(start, stop):
        for k in range(order.shape[1]):
            chosen[k] = weights[r, order[r, k]]
        for k in range(order.shape[1]):
            w = chosen[k]
            # A random set of a peaked row may hold only weights too small for `log`.
            tiny = w <= TINY
            inside = w * _LARGE if tiny else w
            logs[k] = log(inside if inside > ZERO else ONE) - (_LN_LARGE if tiny else ZERO) if w >= ZERO else NAN
        done, mass, moment = 0, 0.0, 0.0
        for g in range(len(sizes)):
            for k in range(done, min(sizes[g], order.shape[1])):
                mass += chosen[k]
                moment += float(chosen[k]) * logs[k]  # in float64: the product of a tiny weight has few digits
            done = max(done, min(sizes[g], order.shape[1]))
            masses[r, g], moments[r, g] = mass, moment


@kernel
def running_sums(weights: Any, x: Any, order: Any, sizes: Any, count: int, sums: Any) -> None:
    """Weighted sums of the vectors of the first N keys of an order, for every N; 0 for sets that leave no key out."""
    running = np.zeros(x.shape[1], np.float32)
    done = 0
    for g in range(len(sizes)):
        if sizes[g] >= count:
            sums[g] = ZERO
            continue
        # Four members at a time, added one after the other: the sum is loaded and stored once per four.
        while done + 4 <= sizes[g]:
            i, j, k, m = order[done], order[done + 1], order[done + 2], order[done + 3]
            add_four(running, weights[i], x[i], weights[j], x[j], weights[k], x[k], weights[m], x[m])
            done += 4
        for k in range(done, sizes[g]):
            a, j = weights[order[k]], order[k]
            for f in range(x.shape[1]):
                running[f] += a * x[j, f]
        done = sizes[g]
        sums[g] = running


@kernel
def add_four(running: Any, a: Any, x: Any, b: Any, y: Any, c: Any, u: Any, d: Any, v: Any) -> None:
    """running += a x + b y + c u + d v, rounded as if added one by one."""
    for f in range(running.shape[0]):
        one = running[f] + a * x[f]
        two = one + b * y[f]
        three = two + c * u[f]
        running[f] = three + d * v[f]


@kernel
def random_order(logits: Any, draws: Any, order: Any, start: int, stop: int) -> None:
    """The start of a random order of the visible keys (Fisher-Yates shuffle)."""
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
