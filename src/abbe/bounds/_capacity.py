"""Section 6, the functional measure: what is lost when only the top N keys are kept.

N* and both ways of truncating are those of "Retrieval Capacity of Self-Attention Under Competition" (arXiv 2609.37879).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._checks import Number, checked_rows, fraction, not_negative


class TruncationErrors(NamedTuple):
    """Output error vectors (..., d) of keeping a set: without and with renormalised weights."""

    deletion: Tensor
    renormalised: Tensor


def mass_law(fraction_kept: Number, deviation: Number) -> Tensor:
    """Mass held by the top fraction rho of a long row whose logits are iid N(mu, sigma^2): Phi(sigma + Phi^-1(rho)).

    Exact as L grows. sigma = 1: the top 6 % hold 29 %; sigma = 3: 93 %. High means that few keys do the work.
    Source: this project.
    """
    rho, sigma = fraction("fraction_kept", fraction_kept), not_negative("deviation", deviation)
    mass: Tensor = torch.special.ndtr(sigma + torch.special.ndtri(rho))
    return mass


def truncation_errors(weights: Tensor, values: Tensor, count: Number, mask: Tensor | None = None) -> TruncationErrors:
    """Output minus truncated output, exact: e_del = (1 - M_S) mu_T, e_ren = (1 - M_S)(mu_T - mu_S).

    S is the selected set (the N largest, or a bool tensor), M_S its mass, mu_S and mu_T the weighted mean values of
    the kept and of the dropped keys. For weights that sum to 1. Source: this project. Small errors mean that the
    dropped keys carried little mass, or said the same as the kept ones.
    """
    weights, values, visible, kept = checked_rows(weights, values, count, mask, "values")
    _, kept_mean = _mass_and_mean(weights, values, kept)
    dropped_mass, dropped_mean = _mass_and_mean(weights, values, visible & ~kept)
    return TruncationErrors(dropped_mass * dropped_mean, dropped_mass * (dropped_mean - kept_mean))


def _mass_and_mean(weights: Tensor, values: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    share = torch.where(where, weights, 0.0)
    mass = share.sum(-1, keepdim=True)
    return mass, (share.unsqueeze(-1) * values).sum(-2) / torch.where(mass > 0, mass, 1.0)
