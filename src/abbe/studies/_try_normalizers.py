"""What normalizers make of one row of logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._errors import AbbeError
from ..normalizers import Normalizer, normalizer


@dataclass(frozen=True)
class NormalizerTrial:
    """One normalizer on one row.

    `zeros` counts weights that are exactly 0; `lipschitz` is the largest spectral norm of the Jacobian on rows of this
    length. A normalizer that is not `continuous` also jumps, which no such constant bounds.
    """

    spec: str
    name: str
    meaning: str
    parameters: dict[str, Any]
    logits: tuple[float, ...]
    weights: tuple[float, ...]
    zeros: int
    row_sum: float
    lipschitz: float
    continuous: bool
    paper: str


def try_normalizers(specs: Sequence[str], logits: Sequence[float]) -> list[NormalizerTrial]:
    """Weights, exact zeros, row sum and Lipschitz constant of each; a logit of -inf is a masked key.

    Example:
        >>> [trial.zeros for trial in try_normalizers(["softmax", "sparsemax"], [3, 2, 1])]
        [0, 2]
    """
    if not logits:
        raise AbbeError("there are no logits: give some, such as 3,2,1,0,-1")
    return [_try(normalizer(spec), tuple(map(float, logits))) for spec in specs]


def _try(made: Normalizer, logits: tuple[float, ...]) -> NormalizerTrial:
    with torch.no_grad():
        of_heads = made(_rows(made, logits), check=True).reshape(-1, len(logits))
    weights = of_heads[0]
    if not bool((of_heads == weights).all()):
        raise AbbeError(f"{made.spec} has heads of different values: try them one at a time, without heads=")
    return NormalizerTrial(
        spec=made.spec,
        name=made.name,
        meaning=made.meaning,
        parameters={option.name: _plain(made._given[option.name]) for option in made.options},
        logits=logits,
        weights=tuple(weights.tolist()),
        zeros=int((weights == 0).sum()),
        row_sum=float(weights.sum()),
        lipschitz=float(made.lipschitz(len(logits))),
        continuous=made.continuous,
        paper=made.paper,
    )


def _rows(made: Normalizer, logits: tuple[float, ...]) -> torch.Tensor:
    """The row once for every head."""
    heads = made._given.get("heads", 1)
    return torch.tensor(logits, dtype=torch.float64).expand(heads, 1, -1)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
