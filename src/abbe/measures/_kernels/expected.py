"""The formula of Theorem 1(2) for all sets of a row, in passes over float32 rows that stay in cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._kernels.compiled import inlined, kernel
from ..._kernels.sums import LONG_BLOCK, Row, sum_over_keys
from ..._kernels.vector import NEG_INF, ONE, ZERO, f32, larger


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
