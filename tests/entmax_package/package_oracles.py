"""Slow and certain: entmax, normmax and budget of one row with as many digits as it takes, by the definition."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import mpmath
import torch
from torch import Tensor


def root(function: object, low: mpmath.mpf, high: mpmath.mpf, rounds: int) -> mpmath.mpf:
    """Where a falling function crosses 1, by bisection."""
    for _ in range(rounds):
        middle = (low + high) / 2
        if function(middle) >= 1:  # type: ignore[operator]
            low = middle
        else:
            high = middle
    return low


def entmax_row(row: Tensor, alpha: float) -> Tensor:
    """p_i = [beta (x_i - top) - tau]_+^(1/beta), tau such that the sum is 1; softmax at alpha = 1."""
    digits = 30 if alpha <= 2 else round(8 * alpha + 20)  # a weight of 0.1 is 0.1^beta in tau
    with mpmath.workdps(digits):
        x = [mpmath.mpf(v) - mpmath.mpf(float(row.max())) for v in row.tolist()]
        beta = mpmath.mpf(alpha) - 1
        if beta == 0:
            raw = [mpmath.exp(v) for v in x]
        else:
            # the largest weight, 1/n to 1, is (-tau)^(1/beta)
            ends = sorted(-mpmath.power(m, beta) for m in (1, mpmath.mpf(1) / len(x)))

            def weights(tau: mpmath.mpf) -> list[mpmath.mpf]:
                return [mpmath.power(beta * v - tau, 1 / beta) if beta * v > tau else mpmath.mpf(0) for v in x]

            falls = beta > 0
            tau = root(
                lambda t: sum(weights(t if falls else -t)),
                *(ends if falls else [-t for t in ends[::-1]]),
                round(3.2 * digits),
            )
            raw = weights(tau if falls else -tau)
        total = sum(raw)
        return torch.tensor([float(v / total) for v in raw], dtype=torch.float64)


def normmax_row(row: Tensor, alpha: float) -> Tensor:
    """p is proportional to u_i = [x_i - tau]_+^(1/beta), tau such that the alpha-norm of u is 1."""
    with mpmath.workdps(60):
        x = [mpmath.mpf(v) - mpmath.mpf(float(row.max())) for v in row.tolist()]
        beta = mpmath.mpf(alpha) - 1
        tau = root(
            lambda t: sum(mpmath.power(v - t, alpha / beta) for v in x if v > t), mpmath.mpf(-1), mpmath.mpf(0), 190
        )
        raw = [mpmath.power(v - tau, 1 / beta) if v > tau else mpmath.mpf(0) for v in x]
        return torch.tensor([float(v / sum(raw)) for v in raw], dtype=torch.float64)


def budget_row(row: Tensor, budget: float) -> Tensor:
    """clip(x - tau, 0, 1) in exact fractions: every piece between two corners is tried."""
    x = [Fraction(v) for v in row.tolist()]
    wanted = min(Fraction(budget), Fraction(len(x)))

    def at(tau: Fraction) -> list[Fraction]:
        return [min(max(v - tau, Fraction(0)), Fraction(1)) for v in x]

    corners = sorted({*x, *(v - 1 for v in x)})
    for low, high in pairwise(corners):
        most, least = sum(at(low)), sum(at(high))
        if least <= wanted <= most:
            tau = low if most == least else low + (high - low) * (most - wanted) / (most - least)
            return torch.tensor([float(v) for v in at(tau)], dtype=torch.float64)
    raise AssertionError("the sum is n at the lowest corner and 0 at the highest")
