"""Which factor of the logits a plan gives each head, where it changes nothing else."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...normalizers import Normalizer, Softmax
from .._swap.groups import HeadGroup
from .._swap.layers import Layer
from .._swap.plan import Plan


def scales(plan: Plan) -> dict[Layer, Tensor] | None:
    """Of every layer one factor per head (float64), None if some head gets more than another temperature of softmax."""
    by_layer = {layer: _of_layer(layer, groups) for layer, groups in plan.by_layer.items()}
    if any(factors is None for factors in by_layer.values()):
        return None
    return {layer: factors for layer, factors in by_layer.items() if factors is not None}


def not_foldable(plan: Plan) -> list[str]:
    """The specs of the plan that no factor stands for, each once."""
    made = (group.normalizer for groups in plan.values() for group in groups)
    return sorted({str(one) for one in made if one is not None and _factor(one) is None})


def _of_layer(layer: Layer, groups: tuple[HeadGroup, ...]) -> Tensor | None:
    factors = torch.ones(layer.heads, dtype=torch.float64)
    for group in groups:
        factor = (1.0,) if group.normalizer is None else _factor(group.normalizer)
        if factor is None:
            return None
        factors[list(group.heads)] = torch.tensor(factor, dtype=torch.float64)
    return factors


def _factor(made: Normalizer) -> tuple[float, ...] | None:
    """softmax(factor * logits): one number, or one per head of the group; None if the normalizer is another map."""
    if type(made) is Softmax:
        return (1 / made.temperature,)
    if made.name == "learned-temperature":
        return _exponentials(made)
    inner = _factor(made.of) if made.name == "scaled" and isinstance(made.of, Normalizer) else None
    if inner is None:
        return None
    own = _exponentials(made)
    most = max(len(own), len(inner))
    return tuple(a * b for a, b in zip(_repeated(own, most), _repeated(inner, most), strict=True))


def _exponentials(made: Normalizer) -> tuple[float, ...]:
    logarithms = made.t
    several = logarithms if isinstance(logarithms, tuple) else (logarithms,)
    return tuple(math.exp(float(one)) for one in several)  # type: ignore[arg-type]


def _repeated(numbers: tuple[float, ...], most: int) -> tuple[float, ...]:
    return numbers * most if len(numbers) == 1 else numbers
