"""Section 5, gradient sensitivity: how much the weights can move when a logit moves.

For softmax the Jacobian is J = (diag a - a a^T)/T. All suprema below are tight.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._errors import AbbeError
from ._checks import Number, checked_weights, positive, root

_MOST_KEYS_TO_ENUMERATE = 20  # half a million sets, as a set and its complement count the same


def _largest_share(weights: Tensor) -> Tensor:
    return (weights * (1 - weights)).amax(-1)


def largest_entry(weights: Tensor, temperature: Number = 1.0) -> Tensor:
    """Largest entry of the Jacobian of softmax: max_ij |J_ij| = max a_i (1 - a_i)/T <= 1/(4T).

    Exact; supremum at a_i = 1/2. High means that one logit can move its own weight a lot, low that none can. Source:
    this project.

    Args:
        weights: (..., keys), >= 0, with a sum of at most 1.
        temperature: T > 0 of these weights.

    Returns:
        Weight per logit, (...), in [0, 1/(4T)].

    Examples:
        >>> float(abbe.bounds.largest_entry(torch.tensor([0.5, 0.25, 0.25])))
        0.25
    """
    a, _ = checked_weights(weights)
    return _largest_share(a) / positive("temperature", temperature, a)


def spectral_norm(weights: Tensor, temperature: Number = 1.0) -> Tensor:
    """How much a small change of the logits can move softmax weights: ||J||_2, from the eigenvalues of diag a - a a^T.

    High (1/(2T)) means that some direction of logits moves the weights a lot, 0 that none does.

    Args:
        weights, temperature: as for `largest_entry`.

    Returns:
        Weight per logit, (...), in [0, 1/(2T)].

    Examples:
        >>> float(abbe.bounds.spectral_norm(torch.tensor([0.5, 0.5])))
        0.5
    """
    a, _ = checked_weights(weights)
    jacobian = torch.diag_embed(a) - a.unsqueeze(-1) * a.unsqueeze(-2)
    largest: Tensor = torch.linalg.eigvalsh(jacobian)[..., -1]
    return largest / positive("temperature", temperature, a)


def spectral_norm_bounds(weights: Tensor, temperature: Number = 1.0) -> tuple[Tensor, Tensor]:
    """Bounds of `spectral_norm` without eigenvalues: max a_i(1 - a_i)/T <= ||J||_2 <= 2 max a_i(1 - a_i)/T <= 1/(2T).

    Tight: right equality at a = (1/2, 1/2), where the supremum 1/(2T) is reached. Low values mean a stable row. Source:
    this project.

    Args:
        weights, temperature: as for `largest_entry`.

    Returns:
        Lower and upper bound, each (...), weight per logit.

    Examples:
        >>> [float(bound) for bound in abbe.bounds.spectral_norm_bounds(torch.tensor([0.5, 0.25, 0.25]))]
        [0.25, 0.5]
    """
    a, _ = checked_weights(weights)
    share = _largest_share(a) / positive("temperature", temperature, a)
    return share, 2 * share


def spectral_norm_supremum(temperature: Number = 1.0) -> Tensor:
    """The largest that `spectral_norm` can be at a temperature: 1/(2T), at two equal weights of 1/2.

    High means that sharp softmax is sensitive softmax. Source: this project; independently arXiv 2510.23012.

    Args:
        temperature: T > 0.

    Returns:
        Weight per logit.

    Examples:
        >>> float(abbe.bounds.spectral_norm_supremum(0.5))
        1.0
    """
    return 0.5 / positive("temperature", temperature)


def spectral_norm_bound_paper(temperature: Number = 1.0) -> Tensor:
    """Corollary 3: ||J||_2 <= min{1/(4T), sqrt 2}. FALSE: a = (1/2, 1/2) gives 1/(2T), at every T.

    1/(4T) bounds the largest entry, sqrt 2 the undivided difference of two weight vectors. Source: arXiv 2508.17821.

    Args:
        temperature: T > 0.

    Returns:
        What the formula gives, weight per logit; the true supremum is `spectral_norm_supremum`.

    Examples:
        >>> float(abbe.bounds.spectral_norm_bound_paper(1.0)), float(abbe.bounds.spectral_norm_supremum(1.0))
        (0.25, 0.5)
    """
    return (0.25 / positive("temperature", temperature)).clamp(max=math.sqrt(2))


def frobenius_norm(weights: Tensor, temperature: Number = 1.0) -> Tensor:
    """Size of the whole Jacobian of softmax: ||J||_F = sqrt(p2 - 2 p3 + p2^2)/T, p_k = sum a^k.

    Exact; supremum 1/(2T) at (1/2, 1/2). High means that random changes of the logits move the weights, low that they
    hardly do. Source: this project.

    Args:
        weights, temperature: as for `largest_entry`.

    Returns:
        Weight per logit, (...), in [0, 1/(2T)].

    Examples:
        >>> round(float(abbe.bounds.frobenius_norm(torch.tensor([0.5, 0.25, 0.25]))), 4)
        0.4507
    """
    a, _ = checked_weights(weights)
    # By entries, a_i (1 - a_i) and a_i a_j, small ones first: the powers p_k would cancel in a peaked row.
    squares = (a**2).sort(-1).values
    before = torch.cat([torch.zeros_like(squares[..., :1]), squares[..., :-1]], -1).cumsum(-1)
    total = ((a * (1 - a)) ** 2).sum(-1) + 2 * (squares * before).sum(-1)
    return root(total) / positive("temperature", temperature, a)


def frobenius_norm_bound(weights: Tensor, temperature: Number = 1.0) -> Tensor:
    """Upper bound of `frobenius_norm`: sqrt(p2 (1 - p2))/T <= 1/(2T), for weights that sum to 1.

    Equality at equal weights. A low value means a row that random changes of the logits hardly move. Source:
    this project.

    Args:
        weights, temperature: as for `largest_entry`.

    Returns:
        Weight per logit, (...).

    Examples:
        >>> round(float(abbe.bounds.frobenius_norm_bound(torch.tensor([0.5, 0.25, 0.25]))), 4)
        0.4841
    """
    a, _ = checked_weights(weights)
    # 1 - p2 as sum a (1 - a), which does not cancel in a peaked row.
    return root((a**2).sum(-1) * (a * (1 - a)).sum(-1)) / positive("temperature", temperature, a)


def one_norm(weights: Tensor, temperature: Number = 1.0) -> Tensor:
    """How much one logit can move all the weights: ||J||_{1->1} = ||J||_{inf->inf} = 2 max a_i(1 - a_i)/T <= 1/(2T).

    Exact, for weights that sum to 1. High means that a single logit moves much weight, low that none does. Source: this
    project; independently arXiv 2510.23012.

    Args:
        weights, temperature: as for `largest_entry`.

    Returns:
        Weight per logit, (...), in [0, 1/(2T)].

    Examples:
        >>> float(abbe.bounds.one_norm(torch.tensor([0.5, 0.25, 0.25])))
        0.5
    """
    a, _ = checked_weights(weights)
    return 2 * _largest_share(a) / positive("temperature", temperature, a)


def inf_to_one_norm(weights: Tensor, temperature: Number = 1.0) -> Tensor:
    """How much weight can move when every logit moves by up to 1: ||J||_{inf->1} = 4 max_S P(S)(1 - P(S))/T.

    P(S) is the mass of a set of keys, for weights that sum to 1. Exact, by enumeration of all sets; supremum 1/T when
    some set holds half the mass. High means that small noise on all logits moves much weight. Source: this project;
    independently arXiv 2602.18849.

    Args:
        weights, temperature: as for `largest_entry`.

    Returns:
        Weight per logit, (...), in [0, 1/T].

    Raises:
        AbbeError: there are more than 20 keys.

    Examples:
        >>> float(abbe.bounds.inf_to_one_norm(torch.tensor([0.5, 0.25, 0.25])))
        1.0
    """
    a, _ = checked_weights(weights)
    keys = a.shape[-1]
    if keys > _MOST_KEYS_TO_ENUMERATE:
        raise AbbeError(f"weights have {keys} keys, inf_to_one_norm enumerates sets of up to {_MOST_KEYS_TO_ENUMERATE}")
    # None holds the last key: sets with it are the complements.
    sets = (torch.arange(2 ** (keys - 1), device=a.device).unsqueeze(-1) >> torch.arange(keys, device=a.device)) & 1
    mass = a @ sets.to(a.dtype).mT
    return 4 * (mass * (1 - mass)).amax(-1) / positive("temperature", temperature, a)


def inf_to_one_supremum(temperature: Number = 1.0) -> Tensor:
    """The largest that `inf_to_one_norm` can be at a temperature: 1/T.

    High means that noise on all logits can move much weight. Source: this project; independently arXiv 2602.18849.

    Args:
        temperature: T > 0.

    Returns:
        Weight per logit.

    Examples:
        >>> float(abbe.bounds.inf_to_one_supremum(0.5))
        2.0
    """
    return 1 / positive("temperature", temperature)
