"""Sensitivity: how much the weights move when the logits move, in the worst and in a random direction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import normalizers
from .._attention.engine import with_sink
from .._errors import AbbeError
from ..normalizers import Normalizer
from ._rows import Rows, RowSummary
from ._spectral import jacobian_norms, rank_one_norms
from ._state import Reading


def sensitivity(
    rows: Rows, normalizer: Normalizer, temperatures: Sequence[float], generator: torch.Generator
) -> dict[str, Reading]:
    """How much the weights move when the logits move a little, in the worst and in a random direction.

    The Jacobian is that of l -> normalizer(l/T). Worst is its spectral norm, exact for softmax, sinks, selections and
    entmax; random is ||J u||, u a uniform random unit vector on the visible keys (the heads of a query share its
    draw). The limit is the normalizer's Lipschitz constant for n keys, over T. High means that a small change of the
    logits moves the weights a lot, low that none does.

    Args:
        rows: a block of attention rows, which may have a sink.
        normalizer: of the weights; softmax if the rows have a sink.
        temperatures: T > 0.
        generator: of the directions; drawn from query by query, so that any blocks give the same numbers.

    Returns:
        Readings sensitivity_worst and sensitivity_random, "@T=0.1" in the name at temperatures other than 1; weight per
        logit, (head, query).

    Examples:
        >>> logits = torch.zeros(1, 1, 2)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 2, 4), softmax=True)
        >>> generator = torch.Generator().manual_seed(0)
        >>> readings = abbe.measures.sensitivity(rows, abbe.normalizer("softmax"), [1, 0.5], generator)
        >>> [(name, round(float(reading.limit), 3)) for name, reading in readings.items() if "worst" in name]
        [('sensitivity_worst', 0.5), ('sensitivity_worst@T=0.5', 1.0)]
    """
    norms = change_norms(rows, normalizer, temperatures, generator)
    return sensitivity_readings(rows.summary, normalizer, norms)


class ChangeNorms(NamedTuple):
    """How far the weights of a row move, (head, query)."""

    worst: Tensor  # the spectral norm of the Jacobian
    random: Tensor  # its product with a random unit vector


def change_norms(
    rows: Rows, normalizer: Normalizer, temperatures: Sequence[float], generator: torch.Generator
) -> dict[float, ChangeNorms]:
    """By temperature, not yet divided by it."""
    for t in temperatures:
        if not (isinstance(t, int | float) and 0 < t < math.inf):
            raise AbbeError(f"temperatures must be positive numbers, got {t!r}")
    if rows.sink and str(normalizer) != "softmax":
        raise AbbeError(f"rows with a learned sink have the Jacobian of softmax with that sink, not of {normalizer}")
    random = directions(rows, generator)
    return {t: _norms(rows, normalizer, float(t), random) for t in temperatures}


def sensitivity_readings(
    rows: RowSummary, normalizer: Normalizer, norms: Mapping[float, ChangeNorms]
) -> dict[str, Reading]:
    readings: dict[str, Reading] = {}
    constant, defined = _limit(rows, normalizer), rows.count > 0
    for t, (worst, random) in norms.items():
        limit = constant / t
        suffix = "" if t == 1 else f"@T={short(t)}"
        readings[f"sensitivity_worst{suffix}"] = Reading(worst / t, defined, limit, quantiles=True)
        readings[f"sensitivity_random{suffix}"] = Reading(random / t, defined, limit, quantiles=True)
    return readings


def short(x: float) -> str:
    return f"{x:g}" if float(f"{x:g}") == x else repr(x)


def directions(rows: Rows, generator: torch.Generator) -> Tensor:
    """Standard normal (query, key), by the Box-Muller transform: torch's own would depend on the block."""
    half = (rows.keys + 1) // 2
    uniform = torch.rand(rows.queries, half, 2, generator=generator, dtype=rows.logits.dtype)
    # Of 1 - u: u may be 0, whose logarithm is infinite.
    radius, angle = torch.sqrt(-2 * torch.log1p(-uniform[..., 0])), 2 * math.pi * uniform[..., 1]
    normal = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], -1).flatten(1)
    return normal[:, : rows.keys].contiguous().to(rows.logits.device)


# Their Jacobian is scale (diag w - w w^T); almost everywhere for a selection.
_SOFTMAX_LIKE = ("softmax", "sink", "topk", "topp", "threshold")


class _RankOne(NamedTuple):
    """A Jacobian factor * (diag(p) - p p^T), p summing to 1 - missing."""

    p: Tensor
    missing: Tensor  # (head, query) or one number for all
    factor: Tensor | float  # (head, query)


def _norms(rows: Rows, normalizer: Normalizer, t: float, random: Tensor) -> ChangeNorms:
    """Of the Jacobian at logits/t."""
    with torch.no_grad():
        form = _sink_form(rows, t) if rows.sink else _form(rows, normalizer, t)
        if form is None:
            return ChangeNorms(*jacobian_norms(normalizer, rows.logits / t, random))
        return ChangeNorms(*(form.factor * norm for norm in rank_one_norms(rows, form.p, form.missing, random)))


def _sink_form(rows: Rows, t: float) -> _RankOne:
    """Softmax with a sink, whose logit is recovered from its weight where the rows do not have it."""
    missing = (1 - rows.facts.total).clamp(min=0)
    if t == 1:
        return _RankOne(rows.weights, missing, 1.0)
    if rows.sink_logits is not None:
        sink = rows.sink_logits.to(rows.logits.dtype)
    else:
        top, largest = rows.logits.amax(-1), torch.where(rows.facts.largest > 0, rows.facts.largest, 1.0)
        sink = torch.where(rows.count > 0, top, 0.0) + torch.log(missing) - torch.log(largest)
    # The sink's weight is computed: 1 minus the sum of the others would lose a small one.
    weights = normalizers.normalizer("softmax")(with_sink(rows.logits / t, sink / t))
    return _RankOne(weights[..., 1:].contiguous(), weights[..., 0], 1.0)


def _form(rows: Rows, normalizer: Normalizer, t: float) -> _RankOne | None:
    """Closed form for softmax at any scale, with a sink or over selected keys, and for entmax; None for the others.

    Entmax: J = scale (diag u - u u^T/sum u), u = w^(2 - alpha) on the support; with p = u/sum u it is
    scale (sum u) (diag p - p p^T).
    """
    none = rows.logits.new_zeros(())
    if not normalizer.is_one_map:
        return None
    if rows.softmax and t == 1 and str(normalizer) == "softmax":
        return _RankOne(rows.weights, none, 1.0)
    logits = rows.logits / t
    which, params = normalizer._map(logits)
    scale = params[..., :1].to(logits.dtype).expand(rows.heads, rows.queries, 1).squeeze(-1)
    if which.name in _SOFTMAX_LIKE:
        w = normalizer(logits)
        missing = (1 - w.sum(-1)).clamp(min=0) if which.name == "sink" else none
        return _RankOne(w, missing, scale)
    powers: dict[str, Tensor | float] = {"sparsemax": 0.0, "entmax15": 0.5, "entmax": 1 - params[..., 1:2]}
    if which.name not in powers:
        return None
    w = normalizer(logits)
    u = torch.where(w > 0, torch.where(w > 0, w, 1.0) ** powers[which.name], 0.0)
    total = u.sum(-1)
    return _RankOne(u / torch.where(total > 0, total, 1.0).unsqueeze(-1), none, scale * total)


def _limit(rows: RowSummary, normalizer: Normalizer) -> Tensor:
    """The Lipschitz constant for the n of every row, (head, query)."""
    applied = normalizers.normalizer("sink") if rows.sink else normalizer
    # A constant may take a search: it is computed once per n.
    counts, place = torch.unique(rows.count, return_inverse=True)
    constants = torch.tensor([applied.lipschitz(max(1, int(n))) for n in counts], dtype=torch.float64)
    return constants.to(place.device)[place]
