"""Sensitivity: norms of the Jacobian of softmax, Lipschitz constants, and how far weights can move."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._errors import AbbeError
from ..normalizers import normalizer
from ._checks import Number, as_tensor, checked_weights, fraction, key_count, not_negative, positive, root

__all__ = [
    "change_bound",
    "change_bound_by_norm",
    "frobenius_norm",
    "frobenius_norm_bound",
    "inf_to_one_norm",
    "inf_to_one_supremum",
    "largest_entry",
    "lipschitz",
    "log_derivative_bound",
    "one_norm",
    "selective_temperature",
    "sensitivity_at_equal_selectivity",
    "spectral_norm",
    "spectral_norm_bound_paper",
    "spectral_norm_bounds",
    "spectral_norm_supremum",
]

_MOST_KEYS_TO_ENUMERATE = 20  # half a million sets, as a set and its complement count the same


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
    return (a * (1 - a)).amax(-1) / positive("temperature", temperature, a)


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
    entry = largest_entry(weights, temperature)
    return entry, 2 * entry


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
    return 2 * largest_entry(weights, temperature)


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
        temperature: as for `spectral_norm_supremum`; so is the unit.

    Examples:
        >>> float(abbe.bounds.inf_to_one_supremum(0.5))
        2.0
    """
    return 1 / positive("temperature", temperature)


def change_bound(change: Tensor, temperature: Number = 1.0) -> Tensor:
    """How far softmax weights can move when the logits change by e, for every l: sqrt2 tanh((max e - min e)/(4T)).

    Bounds ||softmax((l+e)/T) - softmax(l/T)||_2. Tight: equality at l = -e/2 with two keys. A low value means that the
    change cannot matter, sqrt 2 that it may overturn the row. Source: this project.

    Args:
        change: e, (..., keys), in logits.
        temperature: T > 0, divides the logits.

    Returns:
        Bound, (...), in [0, sqrt 2].

    Examples:
        >>> round(float(abbe.bounds.change_bound(torch.tensor([0.1, 0.0, -0.1]))), 4)
        0.0707
    """
    e = as_tensor("change", change)
    return math.sqrt(2) * torch.tanh((e.amax(-1) - e.amin(-1)) / (4 * positive("temperature", temperature, e)))


def change_bound_by_norm(size: Number, temperature: Number = 1.0) -> Tensor:
    """How far softmax weights can move when the logits take a step of a given length: sqrt2 tanh(||e||/(2 sqrt2 T)).

    At most min{||e||/(2T), sqrt2}. Tight: e = (x, -x), l = -e/2. So the finite-difference sensitivity ||.||/eps is at
    most min{1/(2T), sqrt2/eps}. Low means that no such step can matter. Source: this project.

    Args:
        size: ||e|| >= 0, in logits.
        temperature: T > 0, divides the logits.

    Returns:
        Bound, in [0, sqrt 2].

    Examples:
        >>> round(float(abbe.bounds.change_bound_by_norm(0.1)), 4)
        0.05
    """
    e = not_negative("size", size)
    return math.sqrt(2) * torch.tanh(e / (2 * math.sqrt(2) * positive("temperature", temperature)))


def log_derivative_bound(largest_log_derivative: Number) -> Tensor:
    """How sensitive weights F(l_i)/sum F(l_j) can be: ||J_F||_2 <= (1/2) max |(log F)'|, F positive and differentiable.

    Tight: equality at two equal logits where the log-derivative is largest. Softmax: (log F)' = 1/T. Instability
    comes from the log-derivative, not from F becoming small: a high value allows it. Source: this project.

    Args:
        largest_log_derivative: max |(log F)'| >= 0 over the range of the logits.

    Returns:
        Weight per logit.

    Examples:
        >>> float(abbe.bounds.log_derivative_bound(2.0))
        1.0
    """
    return 0.5 * not_negative("largest_log_derivative", largest_log_derivative)


def lipschitz(spec: str, keys: int) -> float:
    """How sensitive any normalizer can be: sup ||J||_2 over rows of up to `keys` keys.

    High means that some row moves a lot when its logits move, low that none does; infinite where weights jump. Source:
    this project.

    Args:
        spec: of a normalizer, such as "entmax:alpha=1.5"; `abbe.list_normalizers` lists them all.
        keys: >= 1.

    Returns:
        Lipschitz constant, weight per logit.

    Examples:
        >>> abbe.bounds.lipschitz("softmax", 128), abbe.bounds.lipschitz("sparsemax", 128)
        (0.5, 1.0)
    """
    return normalizer(spec).lipschitz(keys)


def selective_temperature(spec: str, keys: Number, error: Number = 0.1) -> Tensor:
    """Temperature at which a unit margin gives the top key a weight of 1 - error among L keys.

    softmax (and ssmax, where s ln n plays the part of 1/T): 1/ln((L-1)(1-e)/e). sparsemax: the top key at margin
    m = 1/T over L - 1 equal ones gets (1 + (L-1) m)/L, hence m = ((1-e) L - 1)/(L-1). entmax-1.5: weights (u + h)^2
    and u^2 with m = 2h, (u + h)^2 = 1 - e, (L-1) u^2 = e, hence m = 2 (sqrt(1-e) - sqrt(e/(L-1))).
    Low means that the row must be sharp to select at all. Source: this project.

    Args:
        spec: "softmax", "ssmax", "sparsemax" or "entmax15".
        keys: L >= 2.
        error: the weight left to the others, in (0, 1), with 1 - error > 1/L.

    Returns:
        Temperature.

    Examples:
        >>> [round(float(abbe.bounds.selective_temperature("softmax", keys)), 3) for keys in (100, 10_000)]
        [0.147, 0.088]
    """
    n, e = key_count("keys", keys, 2), fraction("error", error)
    if not bool(((1 - e) * n > 1).all()):
        raise AbbeError("error must leave the top key more than an equal share, 1 - error > 1/keys")
    if spec in ("softmax", "ssmax"):
        return 1 / torch.log((n - 1) * (1 - e) / e)
    if spec == "sparsemax":
        return (n - 1) / ((1 - e) * n - 1)
    if spec == "entmax15":
        return 0.5 / (torch.sqrt(1 - e) - torch.sqrt(e / (n - 1)))
    raise AbbeError(f"spec must be one of softmax, ssmax, sparsemax, entmax15, got {spec!r}")


def sensitivity_at_equal_selectivity(spec: str, keys: Number, error: Number = 0.1) -> Tensor:
    """Lipschitz constant at `selective_temperature`: the fair comparison of normalizers.

    softmax and ssmax (1/2) ln((L-1)(1-e)/e), growing like ln L; sparsemax ((1-e) L - 1)/(L-1) < 1; entmax-1.5 at most
    2 (sqrt(1-e) - sqrt(e/(L-1))) < 2. High means that the price of selecting one key among L is an unstable row.
    Source: this project.

    Args:
        spec: "softmax", "ssmax", "sparsemax" or "entmax15".
        keys: L >= 2; a number, or a tensor of several.
        error: the weight left to the others, in (0, 1), with 1 - error > 1/L.

    Returns:
        Weight per unit margin, one per L.

    Examples:
        >>> for spec in ("softmax", "sparsemax"):
        ...     print(spec, round(float(abbe.bounds.sensitivity_at_equal_selectivity(spec, 10_000)), 3))
        softmax 5.704
        sparsemax 0.9
    """
    n = key_count("keys", keys, 2)
    t = selective_temperature(spec, n, error)
    unscaled = normalizer({"ssmax": "softmax", "entmax15": "entmax:alpha=1.5"}.get(spec, spec))
    constants = torch.tensor([unscaled.lipschitz(int(k)) for k in n.flatten()], dtype=torch.float64, device=n.device)
    return constants.view(n.shape) / t
