"""Orders of the keys of float32 rows, by weight or at random, and sums over the first keys of an order."""
# mypy: allow-untyped-decorators

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import int32

from ..._kernels.compiled import inlined, kernel
from ..._kernels.vector import NAN, NEG_INF, ONE, TINY, ZERO, bits, f32, log

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
