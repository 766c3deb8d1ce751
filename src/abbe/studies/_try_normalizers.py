"""Normalizers applied to one row of logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._errors import AbbeError
from ..normalizers import Normalizer, normalizer


@dataclass(frozen=True)
class NormalizerTrial:
    """One normalizer applied to one row.

    Attributes:
        spec: of the normalizer.
        name: without options.
        meaning: what high and low values of its parameters mean.
        parameters: by name.
        logits: of the row.
        weights: of the row.
        zeros: how many weights are exactly 0.
        row_sum: of the weights.
        lipschitz: the largest spectral norm of the Jacobian on rows of this length; high means that small changes of
            the logits can move the weights a lot.
        continuous: whether the weights never jump; no such constant bounds a jump.
        paper: arXiv id of its source.
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
    """What do normalizers make of one row of logits?

    Args:
        specs: of normalizers, such as "entmax:alpha=1.5".
        logits: of the row; -inf is a masked key.

    Returns:
        Weights, exact zeros, row sum and Lipschitz constant of each.

    Raises:
        AbbeError: a spec is wrong, or there are no logits.

    Examples:
        >>> [trial.zeros for trial in abbe.studies.try_normalizers(["softmax", "sparsemax"], [3, 2, 1])]
        [0, 2]
    """
    if not logits:
        raise AbbeError("there are no logits: give some, such as 3,2,1,0,-1")
    return [_try(normalizer(spec), tuple(map(float, logits))) for spec in specs]


def _try(instance: Normalizer, logits: tuple[float, ...]) -> NormalizerTrial:
    # The row once per head.
    rows = torch.tensor(logits, dtype=torch.float64).expand(instance._given.get("heads", 1), 1, -1)
    with torch.no_grad():
        of_heads = instance(rows, check=True).reshape(-1, len(logits))
    weights = of_heads[0]
    if not bool((of_heads == weights).all()):
        raise AbbeError(f"{instance.spec} has heads of different values: try them one at a time, without heads=")
    given = {option.name: instance._given[option.name] for option in instance.options}
    plain = {
        name: value if value is None or isinstance(value, bool | int | float | str) else str(value)
        for name, value in given.items()
    }
    return NormalizerTrial(
        spec=instance.spec, name=instance.name, meaning=instance.meaning, parameters=plain, logits=logits,
        weights=tuple(weights.tolist()), zeros=int((weights == 0).sum()), row_sum=float(weights.sum()),
        lipschitz=float(instance.lipschitz(len(logits))), continuous=instance.continuous, paper=instance.paper,
    )  # fmt: skip
