"""Section 5, gradient sensitivity: how much the weights can move when a logit moves.

For softmax the Jacobian is J = (diag a - a a^T)/T. All suprema below are tight.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._errors import AbbeError
from ..normalizers import normalizer
from ._checks import Number, as_tensor, checked_weights, fraction, key_count, not_negative, positive, root

_MOST_KEYS_TO_ENUMERATE = 20  # half a million sets, as a set and its complement count alike


def _largest_share(weights: Tensor) -> Tensor:
    return (weights * (1 - weights)).amax(-1)


def largest_entry(weights: Tensor, temperature: Number = 1.0) -> Tensor:
    """max_ij |J_ij| = max a_i (1 - a_i)/T <= 1/(4T). Exact; supremum at a_i = 1/2. Source: this project."""
    a, _ = checked_weights(weights)
    return _largest_share(a) / positive("temperature", temperature, a)


def spectral_norm(weights: Tensor, temperature: Number = 1.0) -> Tensor:
    """||J||_2 by the eigenvalues of diag a - a a^T. High means that some direction of logits moves the weights."""
    a, _ = checked_weights(weights)
    jacobian = torch.diag_embed(a) - a.unsqueeze(-1) * a.unsqueeze(-2)
    largest: Tensor = torch.linalg.eigvalsh(jacobian)[..., -1]
    return largest / positive("temperature", temperature, a)


def spectral_norm_bounds(weights: Tensor, temperature: Number = 1.0) -> tuple[Tensor, Tensor]:
    """max a_i(1 - a_i)/T <= ||J||_2 <= 2 max a_i(1 - a_i)/T <= 1/(2T).

    Tight: right equality at a = (1/2, 1/2), where the supremum 1/(2T) is reached. Source: this project.
    """
    a, _ = checked_weights(weights)
    share = _largest_share(a) / positive("temperature", temperature, a)
    return share, 2 * share


def spectral_norm_supremum(temperature: Number = 1.0) -> Tensor:
    """sup ||J||_2 = 1/(2T), at two equal weights of 1/2. Source: this project."""
    return 0.5 / positive("temperature", temperature)


def spectral_norm_bound_paper(temperature: Number = 1.0) -> Tensor:
    """Corollary 3: ||J||_2 <= min{1/(4T), sqrt 2}. FALSE: a = (1/2, 1/2) gives 1/(2T), at every T.

    1/(4T) bounds the largest entry, sqrt 2 the undivided difference of two weight vectors. Source: arXiv 2508.17821.
    """
    return (0.25 / positive("temperature", temperature)).clamp(max=math.sqrt(2))


def frobenius_norm(weights: Tensor, temperature: Number = 1.0) -> Tensor:
    """||J||_F = sqrt(p2 - 2 p3 + p2^2)/T, p_k = sum a^k. Exact; supremum 1/(2T) at (1/2, 1/2). Source: this project."""
    a, _ = checked_weights(weights)
    # By entries, a_i (1 - a_i) and a_i a_j, small ones first: the powers p_k would cancel in a peaked row.
    squares = (a**2).sort(-1).values
    before = torch.cat([torch.zeros_like(squares[..., :1]), squares[..., :-1]], -1).cumsum(-1)
    total = ((a * (1 - a)) ** 2).sum(-1) + 2 * (squares * before).sum(-1)
    return root(total) / positive("temperature", temperature, a)


def frobenius_norm_bound(weights: Tensor, temperature: Number = 1.0) -> Tensor:
    """||J||_F <= sqrt(p2 (1 - p2))/T <= 1/(2T), for weights that sum to 1. Equality at equal weights.

    Source: this project.
    """
    a, _ = checked_weights(weights)
    # 1 - p2 as sum a (1 - a), which does not cancel in a peaked row.
    return root((a**2).sum(-1) * (a * (1 - a)).sum(-1)) / positive("temperature", temperature, a)


def one_norm(weights: Tensor, temperature: Number = 1.0) -> Tensor:
    """||J||_{1->1} = ||J||_{inf->inf} = 2 max a_i(1 - a_i)/T <= 1/(2T), for weights that sum to 1. Exact.

    Source: this project.
    """
    a, _ = checked_weights(weights)
    return 2 * _largest_share(a) / positive("temperature", temperature, a)


def inf_to_one_norm(weights: Tensor, temperature: Number = 1.0) -> Tensor:
    """||J||_{inf->1} = 4 max_S P(S)(1 - P(S))/T, P(S) the mass of a set of keys, for weights that sum to 1.

    Exact, by enumeration of all sets, so for up to 20 keys; supremum 1/T when some set holds half the mass.
    Source: this project.
    """
    a, _ = checked_weights(weights)
    keys = a.shape[-1]
    if keys > _MOST_KEYS_TO_ENUMERATE:
        raise AbbeError(f"weights have {keys} keys, inf_to_one_norm enumerates sets of up to {_MOST_KEYS_TO_ENUMERATE}")
    # The last key is in none of them: its sets are the complements.
    sets = (torch.arange(2 ** (keys - 1), device=a.device).unsqueeze(-1) >> torch.arange(keys, device=a.device)) & 1
    mass = a @ sets.to(a.dtype).mT
    return 4 * (mass * (1 - mass)).amax(-1) / positive("temperature", temperature, a)


def inf_to_one_supremum(temperature: Number = 1.0) -> Tensor:
    """sup ||J||_{inf->1} = 1/T. Source: this project."""
    return 1 / positive("temperature", temperature)


def change_bound(change: Tensor, temperature: Number = 1.0) -> Tensor:
    """||softmax((l+e)/T) - softmax(l/T)||_2 <= sqrt2 tanh((max e - min e)/(4T)), for every l.

    `change` is e, (..., keys). Tight: equality at l = -e/2 with two keys. Source: this project.
    """
    e = as_tensor("change", change)
    return math.sqrt(2) * torch.tanh((e.amax(-1) - e.amin(-1)) / (4 * positive("temperature", temperature, e)))


def change_bound_by_norm(size: Number, temperature: Number = 1.0) -> Tensor:
    """The same by the norm of e alone: sqrt2 tanh(||e||/(2 sqrt2 T)) <= min{||e||/(2T), sqrt2}.

    Tight: e = (x, -x), l = -e/2. So the finite-difference sensitivity ||.||/eps is at most min{1/(2T), sqrt2/eps}.
    Source: this project.
    """
    e = not_negative("size", size)
    return math.sqrt(2) * torch.tanh(e / (2 * math.sqrt(2) * positive("temperature", temperature)))


def log_derivative_bound(largest_log_derivative: Number) -> Tensor:
    """||J_F||_2 <= (1/2) max |(log F)'| for weights F(l_i)/sum F(l_j), F positive and differentiable.

    Tight: equality at two equal logits where the log-derivative is largest. Softmax: (log F)' = 1/T. Instability
    comes from the log-derivative, not from F becoming small. Source: this project.
    """
    return 0.5 * not_negative("largest_log_derivative", largest_log_derivative)


def lipschitz(spec: str, keys: int) -> float:
    """sup ||J||_2 of any normalizer over rows of up to `keys` keys: `abbe.normalizer(spec).lipschitz(keys)`.

    Source: this project.
    """
    return normalizer(spec).lipschitz(keys)


def selective_temperature(spec: str, keys: Number, error: Number = 0.1) -> Tensor:
    """Temperature at which a unit margin gives the top key a weight of 1 - error among L keys.

    softmax (and ssmax, whose s ln n takes the part of 1/T): 1/ln((L-1)(1-e)/e). sparsemax: the top key at margin
    m = 1/T over L - 1 equal ones gets (1 + (L-1) m)/L, hence m = ((1-e) L - 1)/(L-1). entmax-1.5: weights (u + h)^2
    and u^2 with m = 2h, (u + h)^2 = 1 - e, (L-1) u^2 = e, hence m = 2 (sqrt(1-e) - sqrt(e/(L-1))).
    Source: this project.
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
    """
    n = key_count("keys", keys, 2)
    t = selective_temperature(spec, n, error)
    unit = {"softmax": "softmax", "ssmax": "softmax", "sparsemax": "sparsemax", "entmax15": "entmax:alpha=1.5"}[spec]
    made = normalizer(unit)
    constants = torch.tensor([made.lipschitz(int(k)) for k in n.flatten()], dtype=torch.float64, device=n.device)
    return constants.view(n.shape) / t
