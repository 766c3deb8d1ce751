"""Dispersion: over how many keys a row spreads its weight, beside what its length and its logits allow."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from .. import bounds
from .._kernels.switch import KernelsBrokenError
from .._kernels.threads import over_rows
from ._rows import Rows, flat, order_kernel
from ._sets import Sets
from ._state import Reading


def dispersion(rows: Rows) -> dict[str, Reading]:
    """Over how many keys a row spreads its weight, beside what its length and its logits allow.

    entropy, effective_tokens, max_weight, logit_range, sink_mass; with softmax the two floors, with a sink its mass.
    `list_measures` says what high and low mean. Entropy and effective number are those of the weights divided by their
    sum, and are defined for weights >= 0.

    Args:
        rows: a block of attention rows.

    Returns:
        Readings by name, each (head, query).

    Examples:
        >>> logits = torch.zeros(1, 1, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> round(float(abbe.measures.dispersion(rows)["effective_tokens"].value), 4)
        8.0
    """
    facts = rows.facts
    n, total = facts.keys.double().clamp(min=1), facts.total.double()
    alive, some = rows.alive & (facts.smallest >= 0) & (total > 0), facts.keys > 0
    safe = torch.where(alive, total, 1.0)
    entropy = torch.log(safe) - facts.log_moment.double() / safe
    effective = safe**2 / torch.where(alive, facts.squares.double(), 1.0)
    ceiling = weight_ceiling(rows, n)
    readings = {
        "entropy": Reading(entropy, alive, torch.log(n)),
        "effective_tokens": Reading(effective, alive, n),
        "max_weight": Reading(facts.largest, some, ceiling, 1 / n),
        "logit_range": Reading(facts.spread, some, rows.range_limit),
        "sink_mass": Reading(facts.at_first, some, ceiling, 1 / n),
    }
    if rows.softmax:
        readings |= _floors(rows, n, alive)
    if rows.sink:
        readings["learned_sink_mass"] = Reading(1 - total, some)
    return readings


def weight_ceiling(rows: Rows, n: Tensor) -> Tensor | None:
    """The largest weight that softmax can give to one of n keys at this spread of the logits."""
    return bounds.weight_range(rows.facts.spread.double(), n)[1] if rows.softmax else None


def _floors(rows: Rows, n: Tensor, alive: Tensor) -> dict[str, Reading]:
    """Least entropy and effective number that softmax can have at this spread of the logits."""
    spread = rows.facts.spread.double()
    least = (torch.log(n) - bounds.entropy_deficit_bound(spread)).clamp(min=0)
    fewest = bounds.effective_number_bound(spread, n).clamp(min=1)
    return {"entropy_floor": Reading(least, alive), "effective_tokens_floor": Reading(fewest, alive)}


def selection(rows: Rows, sets: Sets) -> dict[str, Reading]:
    """How much of the row the selected sets hold (top_mass), and how unevenly they share it (selected_divergence).

    `list_measures` says what high and low mean.

    Args:
        rows: a block of attention rows.
        sets: of these rows, from `choose_sets`.

    Returns:
        Readings by name, each (head, query, N).

    Examples:
        >>> logits = torch.zeros(1, 1, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> sets = abbe.measures.choose_sets(rows, (1, 2), torch.Generator().manual_seed(0))
        >>> abbe.measures.selection(rows, sets)["top_mass"].value.tolist()
        [[[0.125, 0.25]]]
    """
    masses, divergences = _mass_and_divergence(rows, sets)
    mass, (divergence, by_chance) = masses[0], divergences
    defined = sets.defined(rows)
    grid, n = torch.tensor(sets.grid, device=mass.device), rows.count.unsqueeze(-1).double()
    return {
        "top_mass": Reading(mass, defined, _mass_ceiling(rows, grid, defined), grid / n.clamp(min=1)),
        "selected_divergence": Reading(divergence, defined & ~torch.isnan(divergence), None, by_chance),
    }


def _mass_ceiling(rows: Rows, grid: Tensor, defined: Tensor) -> Tensor | None:
    if not rows.softmax:
        return None
    n = torch.where(defined, rows.count.unsqueeze(-1), grid + 1)
    return bounds.top_mass_bounds(rows.facts.spread.double().unsqueeze(-1), n, grid)[1]


def _mass_and_divergence(rows: Rows, sets: Sets) -> tuple[Tensor, Tensor]:
    """Mass of the sets, and the divergence ln N - H of their weights, divided by the mass, from equal shares.

    Both (selected or random, head, query, N); the divergence is NaN where a set has no mass or a negative weight.
    """
    mass, moment = _mass_and_moment(rows, sets)
    safe = torch.where(mass > 0, mass, torch.nan)
    size = torch.tensor(sets.grid, device=mass.device).double()
    return mass, (torch.log(size) + moment / safe - torch.log(safe)).clamp(min=0)


def _mass_and_moment(rows: Rows, sets: Sets) -> tuple[Tensor, Tensor]:
    """Sums of w and of w ln w over the selected and the random sets, in float64."""
    if rows.fused:
        with suppress(KernelsBrokenError):
            return _fused_mass_and_moment(rows, sets)
    weights = torch.stack([rows.weights.gather(-1, order) for order in (sets.selected, sets.random)])
    mass = sets.at_grid(weights.cumsum(-1, dtype=torch.float64))
    # NaN from a negative weight on
    return mass, sets.at_grid(torch.xlogy(weights, weights).cumsum(-1, dtype=torch.float64))


def _fused_mass_and_moment(rows: Rows, sets: Sets) -> tuple[Tensor, Tensor]:
    weights, sizes = flat(rows.weights), torch.tensor(sets.grid)
    mass, moment = torch.empty(2, 2, len(weights), len(sizes), dtype=torch.float64)
    for order, *sums in zip((sets.selected, sets.random), mass, moment, strict=True):
        over_rows(order_kernel("set_masses"), len(weights), weights, flat(order), sizes, *sums)
    shape = 2, rows.heads, rows.queries, -1
    return mass.view(shape), moment.view(shape)
