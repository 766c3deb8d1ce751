"""Section 2, weights: what counters dispersion, a margin that grows like ln L or a map with exact zeros.

L is the number of visible keys, R the spread max l - min l of the logits of a row, T the temperature.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._checks import Number, as_tensor, checked_mask, fraction, key_count, positive, selected_count


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
