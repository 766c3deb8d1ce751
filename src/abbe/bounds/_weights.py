"""Section 2, weights: how small softmax weights must become as rows grow, and what stands against it.

L is the number of visible keys, R the spread max l - min l of the logits of a row, T the temperature.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._checks import (
    Number,
    as_tensor,
    checked_mask,
    checked_weights,
    fraction,
    key_count,
    not_negative,
    positive,
    selected_count,
    selected_set,
)


def weight_bounds(logits: Tensor, temperature: Number = 1.0, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Least and greatest weight that softmax can give each key, knowing only its logit and the extremes of the row.

    1/(1 + (L-1) e^{(l_max - l_i)/T}) <= a_i <= 1/(1 + (L-1) e^{(l_min - l_i)/T}). Assumes softmax. Tight: equality
    when all other logits are equal to the maximum (left) or to the minimum (right). Source: this project. A high
    upper value means that the logits alone allow the key to stand out; a low one means that no row can lift it.
    """
    logits = as_tensor("logits", logits)
    t = positive("temperature", temperature, logits)
    visible = checked_mask(mask, logits)
    others = (visible.sum(-1, keepdim=True) - 1).to(logits.dtype)
    top = torch.where(visible, logits, -math.inf).amax(-1, keepdim=True)
    bottom = torch.where(visible, logits, math.inf).amin(-1, keepdim=True)
    shown = torch.where(visible, logits, 0.0)
    # 1/(1 + m e^x) as a sigmoid: no exponential that overflows, and m = 0 (ln 0 = -inf) gives 1.
    low = torch.sigmoid((shown - top) / t - others.log())
    high = torch.sigmoid((shown - bottom) / t - others.log())
    return torch.where(visible, low, 0.0), torch.where(visible, high, 0.0)


def weight_range(spread: Number, keys: Number, temperature: Number = 1.0) -> tuple[Tensor, Tensor]:
    """Least and greatest softmax weight in any row of L keys whose logits spread over at most R.

    1/(1 + (L-1) e^{R/T}) <= a_i <= 1/(1 + (L-1) e^{-R/T}). Tight: equality for two-level logits. Source: this
    project. A low upper value means that attention must vanish at this length.
    """
    r, n = not_negative("spread", spread), key_count("keys", keys)
    t = positive("temperature", temperature)
    others = torch.log(n - 1)
    return torch.sigmoid(-r / t - others), torch.sigmoid(r / t - others)


def weight_range_paper(bound: Number, keys: Number, temperature: Number = 1.0) -> tuple[Tensor, Tensor]:
    """Corollary 1: e^{-2D/T}/L <= a_i <= e^{2D/T}/L, D = ||q|| max ||k|| (so logits lie in [-D, D]).

    True but loose: the upper side says nothing (is at least 1) unless L > e^{2D/T}. Source: arXiv 2508.17821.
    """
    d, n = not_negative("bound", bound), key_count("keys", keys)
    t = positive("temperature", temperature)
    return torch.exp(-2 * d / t) / n, torch.exp(2 * d / t) / n


def general_weight_range_paper(smallest: Number, largest: Number, keys: Number) -> tuple[Tensor, Tensor]:
    """Lemma 1: C1/L <= a_i <= C2/L for a_i = F(l_i)/sum F(l_j), C1 = min F/max F, C2 = max F/min F.

    Assumes F continuous and positive on the range of the logits, with L not in F: sparsemax, entmax, ReLU, top-k,
    sigmoid and stick-breaking are not covered. True, tight to a factor (L + C - 1)/L. Source: arXiv 2508.17821.
    """
    low, high = positive("smallest", smallest), positive("largest", largest)
    n = key_count("keys", keys)
    return low / high / n, high / low / n


def general_weight_range(smallest: Number, largest: Number, keys: Number) -> tuple[Tensor, Tensor]:
    """Lemma 1 made tight: 1/(1 + (L-1) C) <= a_i <= 1/(1 + (L-1)/C), C = max F/min F.

    Equality when all other keys sit at the other end of the range. Source: this project.
    """
    # Of logarithms: the ratio itself may overflow.
    ratio = positive("largest", largest).log() - positive("smallest", smallest).log()
    others = torch.log(key_count("keys", keys) - 1)
    return torch.sigmoid(-ratio - others), torch.sigmoid(ratio - others)


def top_mass(weights: Tensor, count: Number, mask: Tensor | None = None) -> Tensor:
    """Mass of the selected set, the N largest weights. High means that N keys carry the row."""
    chosen = selected_set(weights, count, mask)
    return torch.where(chosen, weights, 0.0).sum(-1)


def top_mass_bounds(spread: Number, keys: Number, count: Number, temperature: Number = 1.0) -> tuple[Tensor, Tensor]:
    """N/L <= mass of the N largest weights <= N/(N + (L-N) e^{-R/T}).

    Assumes softmax. Tight: equality for equal logits (left) and for two-level logits (right). Source: this project.
    A low upper value means that no choice of N keys can hold much of the row.
    """
    r, n = not_negative("spread", spread), key_count("keys", keys)
    t, chosen = positive("temperature", temperature), selected_count(count, n)
    return chosen / n, torch.sigmoid(r / t + torch.log(chosen) - torch.log(n - chosen))


def entropy(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """-sum a ln a in nats. High (at most ln L) means dispersed, 0 means one key."""
    weights, _ = checked_weights(weights, mask)
    return -torch.xlogy(weights, torch.where(weights > 0, weights, 1.0)).sum(-1)


def entropy_deficit_bound(spread: Number, temperature: Number = 1.0) -> Tensor:
    """ln L - H <= ln S(e^{R/T}), S(rho) = (rho - 1) rho^{1/(rho-1)} / (e ln rho), the Specht ratio.

    Assumes softmax; holds for every L and is approached as L grows (two-level logits). Source: this project. A low
    value means that a row with this spread of logits is dispersed whatever it does.
    """
    half = not_negative("spread", spread) / positive("temperature", temperature) / 2
    small = half < 0.05  # ln(sinh h / h) + h coth h - 1 cancels there
    h = torch.where(small, 1.0, half)
    exact = h + torch.log(-torch.expm1(-2 * h) / (2 * h)) + h / torch.tanh(h) - 1
    square = (2 * torch.where(small, half, 0.0)) ** 2
    series = square / 8 - square**2 / 576 + square**3 / 25920
    return torch.where(small, series, exact)


def entropy_deficit_bound_loose(spread: Number, temperature: Number = 1.0) -> Tensor:
    """ln L - H <= R^2/(8 T^2): the quadratic that `entropy_deficit_bound` touches at R = 0. Source: this project."""
    return (not_negative("spread", spread) / positive("temperature", temperature)) ** 2 / 8


def effective_number(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """1/sum a^2, the effective number of tokens of weights that sum to 1. High (at most L) means dispersed."""
    weights, _ = checked_weights(weights, mask)
    return 1 / (weights**2).sum(-1)


def effective_number_bound(spread: Number, keys: Number, temperature: Number = 1.0) -> Tensor:
    """1/sum a^2 >= 4 L rho/(1 + rho)^2, rho = e^{R/T} (Kantorovich).

    Assumes softmax. Tight: equality when a fraction 1/(1 + rho) of the keys is at the top and the rest at the
    bottom. Source: this project. A high value means that a small set can never carry the row.
    """
    x = not_negative("spread", spread) / positive("temperature", temperature)
    # 4 rho/(1 + rho)^2 = 1/cosh^2: rho itself would overflow.
    return key_count("keys", keys) / torch.cosh(x / 2) ** 2


def margin_needed(keys: Number, error: Number, temperature: Number = 1.0, winners: Number = 1) -> Tensor:
    """Margin that N equal winners need over the L - N others to hold a mass of 1 - error: T ln((L-N)(1-e)/(N e)).

    Assumes softmax. Exact (necessary and sufficient when the others are equal). Source: this project. It grows like
    T ln L: that is the resolution limit of softmax.
    """
    n, e = key_count("keys", keys), fraction("error", error)
    chosen, t = selected_count(winners, n, "winners"), positive("temperature", temperature)
    return t * torch.log((n - chosen) * (1 - e) / (chosen * e))


def winners_mass(margin: Number, keys: Number, temperature: Number = 1.0, winners: Number = 1) -> Tensor:
    """Mass of N equal winners at a margin over L - N equal others: the inverse of `margin_needed`. Exact.

    Source: this project. High means that the winners carry the row.
    """
    n, m = key_count("keys", keys), as_tensor("margin", margin)
    chosen, t = selected_count(winners, n, "winners"), positive("temperature", temperature)
    return torch.sigmoid(m / t + torch.log(chosen) - torch.log(n - chosen))


def entmax_gap(alpha: Number) -> Tensor:
    """A key this far below the top gets exactly 0 from alpha-entmax: 1/(alpha - 1).

    1 for sparsemax, 2 for entmax-1.5, infinite as alpha -> 1. Tight. Source: arXiv 1905.05702 and this project.
    """
    a = as_tensor("alpha", alpha)
    positive("alpha - 1", a - 1)
    return 1 / (a - 1)


def entmax_contenders(logits: Tensor, alpha: Number, mask: Tensor | None = None) -> Tensor:
    """k, the visible keys closer than the gap to the top: support <= k, largest weight >= 1/k, H <= ln k.

    Holds for every L: keys outside the gap change nothing. Tight when the k are equal. Source: this project. Low
    means that the row is sharp whatever its length.
    """
    logits = as_tensor("logits", logits)
    visible = checked_mask(mask, logits)
    top = torch.where(visible, logits, -math.inf).amax(-1, keepdim=True)
    return (visible & (logits > top - entmax_gap(alpha).to(logits.dtype))).sum(-1)
