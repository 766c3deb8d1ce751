"""Section 2, weights: how small softmax weights must become as rows grow.

L is the number of visible keys, R the spread max l - min l of the logits of a row, T the temperature.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._checks import Number, as_tensor, checked_mask, key_count, not_negative, positive, selected_count, selected_set


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
