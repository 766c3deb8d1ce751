"""All statements: weights, distance, separability, gradient, capacity."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _capacity as capacity
from . import _distance as distance
from . import _weights as weights
from ._catalogue_common import OURS, PLACED, count_of, keys_of
from ._catalogue_distance import DISTANCE
from ._catalogue_gradient import GRADIENT
from ._catalogue_separability import SEPARABILITY
from ._catalogue_weights import WEIGHTS
from ._checks import selected_set
from ._statements import Point, Sizes, Statement, normal, rows_and_vectors


def _closed_form(point: Point) -> capacity.TruncationErrors:
    return capacity.truncation_errors(point.weights, point["vectors"], count_of(point))


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


CAPACITY: tuple[Statement, ...] = (
    Statement("deletion-error", "capacity", "output error of deletion = (1 - M_S) mu_T",
              r"e_{\mathrm{del}}=(1-M_S)\mu_T", OURS, "weights sum to 1", "proved", True, rows_and_vectors,
              lambda p: 1 + _truncated(p, False),
              lambda p: 1 + distance.norm(_closed_form(p).deletion),
              "equal", PLACED, False),
    Statement("renormalised-error", "capacity", "output error with renormalised weights = (1 - M_S)(mu_T - mu_S)",
              r"e_{\mathrm{ren}}=(1-M_S)(\mu_T-\mu_S)", OURS, "weights sum to 1", "proved", True, rows_and_vectors,
              lambda p: 1 + _truncated(p, True),
              lambda p: 1 + distance.norm(_closed_form(p).renormalised),
              "equal", PLACED, False),
    Statement("mass-law", "capacity",
              "the top fraction rho of normal logits holds Phi(sigma + Phi^-1(rho)), within 5 %",
              r"M(\rho)=\Phi(\sigma+\Phi^{-1}(\rho))", OURS, "logits iid N(mu, sigma^2), long rows",
              "approximation", False,
              _mass_row, lambda p: weights.top_mass(p.weights, count_of(p)),
              lambda p: capacity.mass_law(count_of(p) / keys_of(p), p["sigma"]), "equal",
              ({"keys": 65536, "count": 4096}, {"keys": 65536, "count": 16384}), False, None, 0.05),
)  # fmt: skip


def catalogue() -> tuple[Statement, ...]:
    """Every statement that the library proves, refutes or tries, in the order of the theory.

    Returns:
        Statements, each with its formula, source, assumptions and status; `abbe.verify` tries them all.

    Examples:
        >>> statements = abbe.bounds.catalogue()
        >>> [s.name for s in statements if s.status == "refuted" and s.section == "distance"]
        ['theorem-1-root', 'theorem-1-random-paper', 'collapse-paper']
        >>> statements[0].name, statements[0].status, statements[0].tight
        ('weight-upper', 'proved', True)
    """
    return (*WEIGHTS, *DISTANCE, *SEPARABILITY, *GRADIENT, *CAPACITY)
