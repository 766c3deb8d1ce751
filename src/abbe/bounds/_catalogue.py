"""All statements: weights, distance, separability, gradient, capacity."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _capacity as capacity
from . import _distance as distance
from . import _weights as weights
from ._catalogue_distance import DISTANCE
from ._catalogue_gradient import GRADIENT
from ._catalogue_separability import SEPARABILITY
from ._catalogue_weights import WEIGHTS
from ._checks import selected_set
from ._statements import PLACED, Point, Sizes, Statement, count_of, entries, keys_of, normal, placed, rows_and_vectors

_closed_form = placed(capacity.truncation_errors)


def _truncated(point: Point, renormalise: bool) -> Tensor:
    """Size of the output error, computed the long way."""
    a, v = point.weights, point["vectors"]
    kept = torch.where(selected_set(a, count_of(point)), a, 0.0)
    if renormalise:
        kept = kept / kept.sum(-1, keepdim=True)
    return distance.norm(((a - kept).unsqueeze(-1) * v).sum(-2))


def _mass_row(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    sigma = 3 * torch.rand(max(10, trials // 20), generator=generator, dtype=torch.float64)
    logits = sigma.unsqueeze(-1) * normal(generator, len(sigma), sizes["keys"])
    return Point({"logits": logits, "sigma": sigma, "log_temperature": torch.zeros_like(sigma)}, sizes)


_entry = entries("capacity", assumptions="weights sum to 1", sampler=rows_and_vectors, side="equal", sizes=PLACED,
                 searchable=False)  # fmt: skip

CAPACITY = (
    _entry("deletion-error", "output error of deletion = (1 - M_S) mu_T", r"e_{\mathrm{del}}=(1-M_S)\mu_T",
           lambda p: 1 + _truncated(p, False), lambda p: 1 + distance.norm(_closed_form(p).deletion)),
    _entry("renormalised-error", "output error with renormalised weights = (1 - M_S)(mu_T - mu_S)",
           r"e_{\mathrm{ren}}=(1-M_S)(\mu_T-\mu_S)",
           lambda p: 1 + _truncated(p, True), lambda p: 1 + distance.norm(_closed_form(p).renormalised)),
    _entry("mass-law", "the top fraction rho of normal logits holds Phi(sigma + Phi^-1(rho)), within 5 %",
           r"M(\rho)=\Phi(\sigma+\Phi^{-1}(\rho))", lambda p: weights.top_mass(p.weights, count_of(p)),
           lambda p: capacity.mass_law(count_of(p) / keys_of(p), p["sigma"]),
           assumptions="logits iid N(mu, sigma^2), long rows", status="approximation", tight=False, sampler=_mass_row,
           sizes=({"keys": 65536, "count": 4096}, {"keys": 65536, "count": 16384}), tolerance=0.05),
)  # fmt: skip


def catalogue() -> tuple[Statement, ...]:
    """Every statement that the library proves, refutes or tests, in the order of the theory.

    Returns:
        Statements, each with its formula, source, assumptions and status; `abbe.verify` tests them all.

    Examples:
        >>> statements = abbe.bounds.catalogue()
        >>> [s.name for s in statements if s.status == "refuted" and s.section == "distance"]
        ['theorem-1-root', 'theorem-1-random-paper', 'collapse-paper']
        >>> statements[0].name, statements[0].status, statements[0].tight
        ('weight-upper', 'proved', True)
    """
    return (*WEIGHTS, *DISTANCE, *SEPARABILITY, *GRADIENT, *CAPACITY)
