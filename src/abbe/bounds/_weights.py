"""Bounds on attention weights: single ones, top-N mass, entropy, the margin that a selection needs, truncation."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ._checks import (
    Number,
    as_tensor,
    checked_mask,
    checked_rows,
    checked_weights,
    fraction,
    key_count,
    not_negative,
    positive,
    selected_count,
    selected_set,
)

__all__ = [
    "TruncationErrors",
    "effective_number",
    "effective_number_bound",
    "entmax_contenders",
    "entmax_gap",
    "entropy",
    "entropy_deficit_bound",
    "entropy_deficit_bound_loose",
    "general_weight_range",
    "general_weight_range_paper",
    "margin_needed",
    "mass_law",
    "top_mass",
    "top_mass_bounds",
    "truncation_errors",
    "weight_bounds",
    "weight_range",
    "weight_range_paper",
    "winners_mass",
]


def weight_bounds(logits: Tensor, temperature: Number = 1.0, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Least and greatest weight that softmax can give each key, knowing only its logit and the extremes of the row.

    1/(1 + (L-1) e^{(l_max - l_i)/T}) <= a_i <= 1/(1 + (L-1) e^{(l_min - l_i)/T}). Assumes softmax. Tight: equality
    when all other logits are equal to the maximum (left) or to the minimum (right). Source: this project. A high
    upper value means that the logits alone allow the key to stand out; a low one means that no row can lift it.

    Args:
        logits: (..., keys), before the temperature.
        temperature: T > 0, divides the logits.
        mask: bool, True = visible, broadcasts to the logits.

    Returns:
        Lower and upper bound, each (..., keys), in [0, 1]; 0 at masked keys.

    Examples:
        >>> low, high = abbe.bounds.weight_bounds(torch.tensor([2.0, 0.0, 0.0]))
        >>> [round(x, 3) for x in low.tolist()], [round(x, 3) for x in high.tolist()]
        ([0.333, 0.063, 0.063], [0.787, 0.333, 0.333])
    """
    logits = as_tensor("logits", logits)
    t = positive("temperature", temperature, logits)
    visible = checked_mask(mask, logits)
    others = (visible.sum(-1, keepdim=True) - 1).to(logits.dtype)
    top = torch.where(visible, logits, -math.inf).amax(-1, keepdim=True)
    bottom = torch.where(visible, logits, math.inf).amin(-1, keepdim=True)
    seen = torch.where(visible, logits, 0.0)
    # 1/(1 + m e^x) as a sigmoid: nothing overflows, and m = 0 (ln 0 = -inf) gives 1.
    low = torch.sigmoid((seen - top) / t - others.log())
    high = torch.sigmoid((seen - bottom) / t - others.log())
    return torch.where(visible, low, 0.0), torch.where(visible, high, 0.0)


def weight_range(spread: Number, keys: Number, temperature: Number = 1.0) -> tuple[Tensor, Tensor]:
    """Least and greatest softmax weight in any row of L keys whose logits spread over at most R.

    1/(1 + (L-1) e^{R/T}) <= a_i <= 1/(1 + (L-1) e^{-R/T}). Tight: equality for two-level logits. Source: this
    project. A low upper value means that attention must vanish at this length.

    Args:
        spread: R >= 0, the largest minus the smallest logit.
        keys: L >= 1, the visible keys.
        temperature: T > 0, divides the logits.

    Returns:
        Lower and upper bound, in [0, 1].

    Examples:
        >>> [round(float(bound), 7) for bound in abbe.bounds.weight_range(5.0, keys=1024)]
        [6.6e-06, 0.1266958]
    """
    r, n = not_negative("spread", spread), key_count("keys", keys)
    t = positive("temperature", temperature)
    others = torch.log(n - 1)
    return torch.sigmoid(-r / t - others), torch.sigmoid(r / t - others)


def weight_range_paper(bound: Number, keys: Number, temperature: Number = 1.0) -> tuple[Tensor, Tensor]:
    """Range of a softmax weight by the size of query and keys (Corollary 1): e^{-2D/T}/L <= a_i <= e^{2D/T}/L.

    D = ||q|| max ||k||, so logits lie in [-D, D]. True but loose: the upper side says nothing (is at least 1) unless
    L > e^{2D/T}; `weight_range` is tight. A low upper value means that attention must vanish. Source: arXiv 2508.17821.

    Args:
        bound: D >= 0, the largest size of a logit.
        keys: L >= 1, the visible keys.
        temperature: T > 0, divides the logits.

    Returns:
        Lower and upper bound; the upper one may be above 1.

    Examples:
        >>> [round(float(bound), 7) for bound in abbe.bounds.weight_range_paper(2.5, keys=1024)]
        [6.6e-06, 0.1449347]
    """
    d, n = not_negative("bound", bound), key_count("keys", keys)
    t = positive("temperature", temperature)
    return torch.exp(-2 * d / t) / n, torch.exp(2 * d / t) / n


def general_weight_range_paper(smallest: Number, largest: Number, keys: Number) -> tuple[Tensor, Tensor]:
    """Range of a weight F(l_i)/sum F(l_j) of any positive F (Lemma 1): C1/L <= a_i <= C2/L.

    C1 = min F/max F, C2 = max F/min F. Assumes F continuous and positive on the range of the logits, with L not in F:
    sparsemax, entmax, ReLU, top-k, sigmoid and stick-breaking are not covered. True, tight to a factor (L + C - 1)/L.
    A low upper value means that attention must vanish. Source: arXiv 2508.17821.

    Args:
        smallest: min F > 0 over the range of the logits.
        largest: max F >= min F over the range of the logits.
        keys: L >= 1, the visible keys.

    Returns:
        Lower and upper bound; the upper one may be above 1.

    Examples:
        >>> [float(bound) for bound in abbe.bounds.general_weight_range_paper(0.5, 2.0, keys=8)]
        [0.03125, 0.5]
    """
    low, high = positive("smallest", smallest), positive("largest", largest)
    n = key_count("keys", keys)
    return low / high / n, high / low / n


def general_weight_range(smallest: Number, largest: Number, keys: Number) -> tuple[Tensor, Tensor]:
    """Range of a weight F(l_i)/sum F(l_j) of any positive F, in tight form: 1/(1 + (L-1) C) <= a_i <= 1/(1 + (L-1)/C).

    C = max F/min F. Equality when all other keys sit at the other end of the range. A low upper value means that
    attention must vanish. Source: this project.

    Args:
        smallest: min F > 0 over the range of the logits.
        largest: max F >= min F over the range of the logits.
        keys: L >= 1, the visible keys.

    Returns:
        Lower and upper bound, in [0, 1].

    Examples:
        >>> [round(float(bound), 4) for bound in abbe.bounds.general_weight_range(0.5, 2.0, keys=8)]
        [0.0345, 0.3636]
    """
    # In logarithms: the ratio itself may overflow.
    ratio = positive("largest", largest).log() - positive("smallest", smallest).log()
    others = torch.log(key_count("keys", keys) - 1)
    return torch.sigmoid(-ratio - others), torch.sigmoid(ratio - others)


def top_mass(weights: Tensor, count: Number, mask: Tensor | None = None) -> Tensor:
    """How much of the row the N largest weights hold.

    High (the sum of the row) means that N keys carry the row, low (N/L) that the weight is spread evenly.

    Args:
        weights: (..., keys), >= 0, with a sum of at most 1.
        count: N, 1 to the visible keys; a number or one per row.
        mask: bool, True = visible, broadcasts to the weights.

    Returns:
        Mass of the selected set, (...), in [0, 1].

    Examples:
        >>> float(abbe.bounds.top_mass(torch.tensor([0.5, 0.25, 0.125, 0.125]), 2))
        0.75
    """
    chosen = selected_set(weights, count, mask)
    return torch.where(chosen, weights, 0.0).sum(-1)


def top_mass_bounds(spread: Number, keys: Number, count: Number, temperature: Number = 1.0) -> tuple[Tensor, Tensor]:
    """How much of a row the N largest softmax weights can hold: N/L <= mass <= N/(N + (L-N) e^{-R/T}).

    Assumes softmax. Tight: equality for equal logits (left) and for two-level logits (right). Source: this project.
    A low upper value means that no choice of N keys can hold much of the row.

    Args:
        spread: R >= 0, the largest minus the smallest logit.
        keys: L >= 1, the visible keys.
        count: N, 1 to L.
        temperature: T > 0, divides the logits.

    Returns:
        Lower and upper bound, in [0, 1].

    Examples:
        >>> [round(float(bound), 4) for bound in abbe.bounds.top_mass_bounds(5.0, keys=1024, count=20)]
        [0.0195, 0.7472]
    """
    r, n = not_negative("spread", spread), key_count("keys", keys)
    t, chosen = positive("temperature", temperature), selected_count(count, n)
    return chosen / n, torch.sigmoid(r / t + torch.log(chosen) - torch.log(n - chosen))


def entropy(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """Entropy of the weights, -sum a ln a.

    High (at most ln L) means dispersed, 0 means that one key has all the weight.

    Args:
        weights: (..., keys), >= 0, with a sum of at most 1.
        mask: bool, True = visible, broadcasts to the weights.

    Returns:
        Entropy in nats, (...).

    Examples:
        >>> round(float(abbe.bounds.entropy(torch.tensor([0.5, 0.5, 0.0, 0.0]))), 4)
        0.6931
    """
    weights, _ = checked_weights(weights, mask)
    return -torch.xlogy(weights, torch.where(weights > 0, weights, 1.0)).sum(-1)


def entropy_deficit_bound(spread: Number, temperature: Number = 1.0) -> Tensor:
    """How far below its maximum the entropy of softmax can be: ln L - H <= ln S(e^{R/T}).

    S(rho) = (rho - 1) rho^{1/(rho-1)} / (e ln rho) is the Specht ratio. Assumes softmax; holds for every L and is
    approached as L grows (two-level logits). Source: this project. A low value means that every row with this spread of
    logits is dispersed, a high one that it may be sharp.

    Args:
        spread: R >= 0, the largest minus the smallest logit.
        temperature: T > 0, divides the logits.

    Returns:
        The largest deficit in nats, >= 0.

    Examples:
        >>> round(float(abbe.bounds.entropy_deficit_bound(5.0)), 4)
        2.4177
    """
    half = not_negative("spread", spread) / positive("temperature", temperature) / 2
    small = half < 0.05  # ln(sinh h / h) + h coth h - 1 cancels there
    h = torch.where(small, 1.0, half)
    exact = h + torch.log(-torch.expm1(-2 * h) / (2 * h)) + h / torch.tanh(h) - 1
    square = (2 * torch.where(small, half, 0.0)) ** 2
    series = square / 8 - square**2 / 576 + square**3 / 25920
    return torch.where(small, series, exact)


def entropy_deficit_bound_loose(spread: Number, temperature: Number = 1.0) -> Tensor:
    """How far below its maximum the entropy of softmax can be, in short: ln L - H <= R^2/(8 T^2).

    The quadratic that `entropy_deficit_bound` touches at R = 0. A low value means that every such row is dispersed.
    Source: this project.

    Args:
        spread, temperature: as for `entropy_deficit_bound`.

    Returns:
        The largest deficit in nats, >= 0.

    Examples:
        >>> float(abbe.bounds.entropy_deficit_bound_loose(5.0))
        3.125
    """
    return (not_negative("spread", spread) / positive("temperature", temperature)) ** 2 / 8


def effective_number(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """Effective number of tokens that share the weight, 1/sum a^2, of weights that sum to 1.

    High (at most L) means dispersed, 1 means that one key has all the weight.

    Args:
        weights: (..., keys), >= 0, with a sum of 1.
        mask: bool, True = visible, broadcasts to the weights.

    Returns:
        Effective number in tokens, (...).

    Examples:
        >>> float(abbe.bounds.effective_number(torch.tensor([0.5, 0.5, 0.0, 0.0])))
        2.0
    """
    weights, _ = checked_weights(weights, mask)
    return 1 / (weights**2).sum(-1)


def effective_number_bound(spread: Number, keys: Number, temperature: Number = 1.0) -> Tensor:
    """The fewest tokens, effectively, that softmax can share its weight among: 1/sum a^2 >= 4 L rho/(1 + rho)^2.

    rho = e^{R/T} (Kantorovich). Assumes softmax. Tight: equality when a fraction 1/(1 + rho) of the keys is at the top
    and the rest at the bottom. Source: this project. A high value means that a small set can never carry the row.

    Args:
        spread: R >= 0, the largest minus the smallest logit.
        keys: L >= 1, the visible keys.
        temperature: T > 0, divides the logits.

    Returns:
        Least effective number, in tokens; below 1 it says nothing.

    Examples:
        >>> round(float(abbe.bounds.effective_number_bound(5.0, keys=1024)), 2)
        27.23
    """
    x = not_negative("spread", spread) / positive("temperature", temperature)
    # 4 rho/(1 + rho)^2 = 1/cosh^2: rho itself would overflow.
    return key_count("keys", keys) / torch.cosh(x / 2) ** 2


def margin_needed(keys: Number, error: Number, temperature: Number = 1.0, winners: Number = 1) -> Tensor:
    """Margin that N equal winners need over the L - N others to hold a mass of 1 - error: T ln((L-N)(1-e)/(N e)).

    Assumes softmax. Exact (necessary and sufficient when the others are equal). Source: this project; independently
    arXiv 2512.13898. It grows like T ln L, the resolution limit of softmax (arXiv 2510.05554 and 2605.12697 have this
    scale as the critical one of a row's logits). High means that the winners must lie far above the rest.

    Args:
        keys: L >= 1, the visible keys.
        error: the mass left to the others, strictly between 0 and 1.
        temperature: T > 0, divides the logits.
        winners: N, 1 to L.

    Returns:
        Margin in logits.

    Examples:
        >>> [round(float(abbe.bounds.margin_needed(keys, error=0.1)), 2) for keys in (100, 10_000)]
        [6.79, 11.41]
    """
    n, e = key_count("keys", keys), fraction("error", error)
    chosen, t = selected_count(winners, n, "winners"), positive("temperature", temperature)
    return t * torch.log((n - chosen) * (1 - e) / (chosen * e))


def winners_mass(margin: Number, keys: Number, temperature: Number = 1.0, winners: Number = 1) -> Tensor:
    """Mass of N equal winners at a margin over L - N equal others: the inverse of `margin_needed`.

    Assumes softmax. Exact. Source: this project. High means that the winners carry the row, low that the others drown
    them.

    Args:
        margin: of the winners over the others, in logits.
        keys: L >= 1, the visible keys.
        temperature: T > 0, divides the logits.
        winners: N, 1 to L.

    Returns:
        Mass of the winners, in (0, 1].

    Examples:
        >>> [round(float(abbe.bounds.winners_mass(5.0, keys)), 3) for keys in (100, 10_000)]
        [0.6, 0.015]
    """
    n, m = key_count("keys", keys), as_tensor("margin", margin)
    chosen, t = selected_count(winners, n, "winners"), positive("temperature", temperature)
    return torch.sigmoid(m / t + torch.log(chosen) - torch.log(n - chosen))


def entmax_gap(alpha: Number) -> Tensor:
    """How far below the top a key gets exactly 0 from alpha-entmax: 1/(alpha - 1).

    1 for sparsemax, 2 for entmax-1.5, infinite as alpha -> 1. Tight. A small gap means sparse rows, a large one that
    many keys keep some weight. Source: arXiv 1905.05702 and this project.

    Args:
        alpha: > 1.

    Returns:
        The gap, in logits.

    Examples:
        >>> float(abbe.bounds.entmax_gap(1.5))
        2.0
    """
    a = as_tensor("alpha", alpha)
    positive("alpha - 1", a - 1)
    return 1 / (a - 1)


def entmax_contenders(logits: Tensor, alpha: Number, mask: Tensor | None = None) -> Tensor:
    """How many keys can share the weight of alpha-entmax: k, the visible keys closer than the gap to the top.

    Support <= k, largest weight >= 1/k, H <= ln k. Holds for every L: keys outside the gap change nothing. Tight when
    the k are equal. Source: this project. Low means that the row is sharp whatever its length.

    Args:
        logits: (..., keys).
        alpha: > 1.
        mask: bool, True = visible, broadcasts to the logits.

    Returns:
        k, (...), a whole number.

    Examples:
        >>> int(abbe.bounds.entmax_contenders(torch.tensor([3.0, 2.5, 0.0, -4.0]), alpha=1.5))
        2
    """
    logits = as_tensor("logits", logits)
    visible = checked_mask(mask, logits)
    top = torch.where(visible, logits, -math.inf).amax(-1, keepdim=True)
    return (visible & (logits > top - entmax_gap(alpha).to(logits.dtype))).sum(-1)


class TruncationErrors(NamedTuple):
    """Output error vectors of keeping a set of keys. Short vectors mean that the dropped keys do not matter.

    Attributes:
        deletion: (..., d), the other weights set to 0.
        renormalised: (..., d), the kept weights scaled up to their old sum.
    """

    deletion: Tensor
    renormalised: Tensor


def mass_law(fraction_kept: Number, deviation: Number) -> Tensor:
    """Mass held by the top fraction rho of a long row whose logits are iid N(mu, sigma^2): Phi(sigma + Phi^-1(rho)).

    Exact as L grows. sigma = 1: the top 6 % hold 29 %; sigma = 3: 93 %. High means that few keys do the work, low (rho)
    that all keys count equally. Source: this project; independently arXiv 2512.07647.

    Args:
        fraction_kept: rho, strictly between 0 and 1.
        deviation: sigma >= 0, of the logits.

    Returns:
        Mass of the top fraction, in (0, 1).

    Examples:
        >>> [round(float(abbe.bounds.mass_law(0.06, sigma)), 2) for sigma in (0.0, 1.0, 3.0)]
        [0.06, 0.29, 0.93]
    """
    rho, sigma = fraction("fraction_kept", fraction_kept), not_negative("deviation", deviation)
    mass: Tensor = torch.special.ndtr(sigma + torch.special.ndtri(rho))
    return mass


def truncation_errors(weights: Tensor, values: Tensor, count: Number, mask: Tensor | None = None) -> TruncationErrors:
    """What the output loses when only a set of keys is kept, exact.

    e_del = (1 - M_S) mu_T, e_ren = (1 - M_S)(mu_T - mu_S): M_S is the mass of the set, mu_S and mu_T the weighted mean
    values of the kept and of the dropped keys. Source: this project; independently arXiv 2512.07647. Small errors mean
    that the dropped keys carried little mass, or agreed with the kept ones.

    Args:
        weights: (..., keys), >= 0, with a sum of 1.
        values: (..., keys, d).
        count: N, for the N largest weights, or a bool tensor that marks the kept keys.
        mask: bool, True = visible, broadcasts to the weights.

    Returns:
        Output minus truncated output, without and with renormalised weights.

    Examples:
        >>> weights, values = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([[1.0], [0.0], [2.0]])
        >>> errors = abbe.bounds.truncation_errors(weights, values, 1)
        >>> errors.deletion.tolist(), errors.renormalised.tolist()
        ([0.5], [0.0])
    """
    weights, values, visible, kept = checked_rows(weights, values, count, mask, "values")
    _, kept_mean = _mass_and_mean(weights, values, kept)
    dropped_mass, dropped_mean = _mass_and_mean(weights, values, visible & ~kept)
    return TruncationErrors(dropped_mass * dropped_mean, dropped_mass * (dropped_mean - kept_mean))


def _mass_and_mean(weights: Tensor, values: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    share = torch.where(where, weights, 0.0)
    mass = share.sum(-1, keepdim=True)
    return mass, (share.unsqueeze(-1) * values).sum(-2) / torch.where(mass > 0, mass, 1.0)
