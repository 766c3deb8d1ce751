"""Section 2, weights: how dispersed softmax must be at a given spread of the logits.

L is the number of visible keys, R the spread max l - min l of the logits of a row, T the temperature.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._checks import Number, checked_weights, key_count, not_negative, positive


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
