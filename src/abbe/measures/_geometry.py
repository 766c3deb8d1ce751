"""Geometry: how far the selected tokens lie from the rest, and whether a ball or a cone separates them.

Sources: distance and separability arXiv 2508.17821; recall, precision and F "Geometric Analysis of Token Selection in
Multi-Head Attention" (arXiv 2602.01893), in value space with a random control as in "Retrieval Capacity of
Self-Attention Under Competition" (arXiv 2609.37879).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._rows import Rows, RowSummary
from ._set_geometry import LimitTerms, RowGeometry, SetGeometry, row_geometry
from ._sets import Sets
from ._state import Reading


def geometry(rows: Rows, sets: Sets) -> dict[str, Reading]:
    """How far the selected tokens lie from the rest, and whether a ball or a cone separates them.

    Distances, separability, recall, precision and F, each with its control; `list_measures` says what high and low
    mean. The control is the same measure on one random set of N visible keys around its own sum. Limits: Theorem 1(1)
    for the distance, and the deterministic bound for the net distance. Both need d1, the largest distance of a selected
    from an unselected vector; a larger number that needs no pairs replaces it: max ||x - c|| over the row plus the same
    maximum over the selected, c the weighted mean of the row. They hold for weights that sum to 1.

    Args:
        rows: a block of attention rows.
        sets: of these rows, from `choose_sets`.

    Returns:
        Readings by name, each (head, query, N): distances in the unit of the vectors, the others shares.

    Examples:
        >>> logits = torch.tensor([[[2.0, 2.0, 0.0, 0.0]]])
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.eye(4)[None], softmax=True)
        >>> sets = abbe.measures.choose_sets(rows, (2,), torch.Generator().manual_seed(0))
        >>> abbe.measures.geometry(rows, sets)["separability"].value.tolist()
        [[[1.0]]]
    """
    return geometry_readings(rows.summary, sets.grid, row_geometry(rows, sets))


def geometry_readings(rows: RowSummary, grid: Sequence[int], parts: RowGeometry) -> dict[str, Reading]:
    defined, size = rows.defined(grid), torch.tensor(tuple(grid), device=rows.count.device)
    rest = (rows.count.unsqueeze(-1) - size).clamp(min=1)
    both = _measures(parts.sets, size, rest)
    limits = _limits(parts.limits, rest, rows.is_distribution.unsqueeze(-1))
    return {name: Reading(value, defined, limits.get(name), control) for name, (value, control) in both.items()}


def _measures(parts: SetGeometry, size: Tensor, rest: Tensor) -> dict[str, Tensor]:
    distance, net = parts.distance, parts.net_distance
    measures = {"distance": distance, "distance_per_token": distance / rest, "net_distance": net}
    by_metric = {
        "": (parts.closed, parts.strict, parts.intruders),
        "_cosine": (parts.closed_cosine, parts.strict_cosine, parts.intruders_cosine),
    }
    for metric, (closed, strict, intruders) in by_metric.items():
        recall, precision = strict / size, size / (size + intruders)
        measures[f"separability{metric}"] = closed / size
        measures[f"recall{metric}"] = recall
        measures[f"precision{metric}"] = precision
        measures[f"f_score{metric}"] = 2 * recall * precision / (recall + precision)
    return measures


def _limits(parts: LimitTerms, rest: Tensor, holds: Tensor) -> dict[str, Tensor]:
    left = (1 - parts.mass).clamp(min=0)
    distance = left * parts.reach + parts.longest * (parts.mass * rest - left)
    net = left * parts.reach + (2 * parts.mass - 1).abs() * parts.longest
    distance, net = (torch.where(holds, limit, torch.nan) for limit in (distance, net))
    return {"distance": distance, "distance_per_token": distance / rest, "net_distance": net}
