"""Section 5, gradient sensitivity: how far the weights of a whole class of rows can move, and at what price.

Bounds for finite changes and for other maps, and the comparison of normalizers at equal selectivity.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._errors import AbbeError
from ..normalizers import normalizer
from ._checks import Number, as_tensor, fraction, key_count, not_negative, positive


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
