"""The formula of Theorem 1(2) for all sets of a row, in passes over float32 rows that stay in cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._kernels.vector import LONG_BLOCK, NEG_INF, ONE, ZERO, block_end, f32, kernel, larger


@kernel
def formula_rows(
    logits: Any, weights: Any, dots: Any, squares: Any, sums: Any, whole: Any, sizes: Any, place: Any, out: Any,
    start: int, stop: int,
) -> None:  # fmt: skip
    """out[r, g] = ((n-N)/n) sum_i ||mu_i|| of the N = sizes[g]; 0 where the set leaves no key out.

    dots[r] = x . z, squares (group, key) = ||x||^2, sums[r] = ||z||^2; place = queries, heads a group.
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


@kernel
def formula_of_size(own: Any, with_sum: Any, shown: Any, square: Any, count: int, size: int) -> Any:
    """mu_i = (1 + c) y_i - c z with c = N/(n-1)."""
    if size >= count:
        return ZERO
    c = f32(size) / f32(count - 1)
    of_own, of_sum, of_both = (ONE + c) * (ONE + c), c * c * square, f32(2.0) * c * (ONE + c)
    keys, start, total = own.shape[0], 0, 0.0
    while start < keys:
        stop = block_end(start, keys, LONG_BLOCK)
        own_, with_, shown_, part = own[start:stop], with_sum[start:stop], shown[start:stop], ZERO
        for j in range(stop - start):
            part += np.sqrt(larger(of_sum + of_own * own_[j] - of_both * with_[j], ZERO)) * shown_[j]
        total += part
        start = stop
    return f32(total * (count - size) / count)
