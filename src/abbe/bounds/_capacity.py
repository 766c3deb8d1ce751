"""Section 6, the functional measure: what is lost when only the top N keys are kept.

N* and both ways of truncating are those of "Retrieval Capacity of Self-Attention Under Competition" (arXiv 2609.37879).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._checks import Number, checked_rows, fraction, not_negative


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
