"""Attention patterns: how much of its weight a query gives to the token before it, and to what followed its last copy.

Induction (Olsson et al., 2022, arXiv 2209.11895): after "A B ... A", the head looks at B.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .._errors import AbbeError
from ._dispersion import weight_ceiling
from ._rows import Rows, RowSummary
from ._state import Reading


def patterns(rows: Rows, positions: Tensor, tokens: Tensor) -> dict[str, Reading]:
    """How much weight queries give to the token before them, and to the one that followed the last copy of their token.

    previous_token is the weight on the key just before the query; induction that on the key after the last earlier
    occurrence of the query's token. Both look back only, even where later keys are visible, so that causal and
    bidirectional heads can be compared. A query counts if it sees the key that the pattern expects, and that key is not
    its own. The limit is that of any single weight, the control a uniform head: 1/n. High means that the head follows
    the pattern, low that it does not.

    Args:
        rows: of self-attention.
        positions: of the queries in the window, (query,).
        tokens: of the keys, (key,).

    Returns:
        Readings previous_token and induction, each (head, query).

    Examples:
        >>> logits = torch.zeros(1, 4, 4)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 4, 2), softmax=True)
        >>> readings = abbe.measures.patterns(rows, torch.arange(4), torch.tensor([5, 6, 7, 5]))
        >>> readings["induction"].defined.tolist(), readings["induction"].value[0, 3].item()
        ([[False, False, False, True]], 0.25)
    """
    if tokens.shape != (rows.keys,) or positions.shape != (rows.queries,):
        shapes = f"{tuple(positions.shape)} and {tuple(tokens.shape)}"
        raise AbbeError(f"positions and tokens must be ({rows.queries} queries,) and ({rows.keys} keys,), got {shapes}")
    return pattern_readings(rows.summary, pattern_weights(rows, positions, pattern_keys(tokens)))


class PatternWeight(NamedTuple):
    """Of the key that a pattern expects, (head, query)."""

    weight: Tensor
    seen: Tensor  # bool: the pattern expects a key, and the query sees it


def pattern_weights(rows: Rows, positions: Tensor, expected: Mapping[str, Tensor]) -> dict[str, PatternWeight]:
    """By pattern; `expected` comes from `pattern_keys`."""
    device = rows.logits.device
    weights = {}
    for name, keys in expected.items():
        key = keys.to(device)[positions.to(device)]
        at = key.clamp(min=0).expand(rows.heads, -1).unsqueeze(-1)
        seen = rows.logits.gather(-1, at).squeeze(-1) != -torch.inf
        weights[name] = PatternWeight(rows.weights.gather(-1, at).squeeze(-1), seen & (key >= 0))
    return weights


def pattern_readings(rows: RowSummary, weights: Mapping[str, PatternWeight]) -> dict[str, Reading]:
    n = rows.count.double().clamp(min=1)
    ceiling, uniform = weight_ceiling(rows, n), 1 / n
    return {name: Reading(one.weight, one.seen, ceiling, uniform) for name, one in weights.items()}


def pattern_keys(tokens: Tensor) -> dict[str, Tensor]:
    """The key that each pattern expects the query at every position to attend to, -1 for none.

    Args:
        tokens: (key,).

    Returns:
        Keys by pattern, each (key,).

    Examples:
        >>> {name: keys.tolist() for name, keys in abbe.measures.pattern_keys(torch.tensor([5, 6, 7, 5])).items()}
        {'previous_token': [-1, 0, 1, 2], 'induction': [-1, -1, -1, 1]}
    """
    places = torch.arange(len(tokens), device=tokens.device)
    after = last_occurrence(tokens) + 1
    # The second of two equal neighbours would expect itself, which says nothing about the head.
    return {"previous_token": places - 1, "induction": torch.where((after > 0) & (after < places), after, -1)}


def last_occurrence(tokens: Tensor) -> Tensor:
    """The position of the last earlier occurrence of the token at each position, -1 if there is none.

    Args:
        tokens: (key,).

    Returns:
        Positions, (key,).

    Examples:
        >>> abbe.measures.last_occurrence(torch.tensor([5, 6, 5, 5])).tolist()
        [-1, -1, 0, 2]
    """
    order = tokens.argsort(stable=True)  # equal tokens become neighbours, in their order
    again = tokens[order[1:]] == tokens[order[:-1]]
    earlier = torch.full_like(order, -1)
    earlier[order[1:]] = torch.where(again, order[:-1], -1)
    return earlier
