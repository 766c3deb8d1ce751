"""The plan of an export: the forms in which it can be given, and the factors of the logits that it stands for."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch
from torch import Tensor

from ..._errors import AbbeError
from ...normalizers import Normalizer, Softmax
from .._swap.groups import What
from .._swap.layers import FILE_PREFIX, Layer
from .._swap.plan import Plan

# In a run's folder, the most finished first.
_FILES = ("plan.safetensors", "tuned.safetensors", "calibrated.safetensors")


def as_swapped(plan: object) -> What:
    """The plan as `swap` takes it: a file needs no prefix here, and may be the folder of a run."""
    if isinstance(plan, Plan):
        return {
            f"{path}.heads.{','.join(map(str, group.heads))}": group.normalizer
            for path, groups in plan.items()
            for group in groups
            if group.normalizer is not None
        }
    path = plan_path(plan)
    return plan if path is None else f"{FILE_PREFIX}{path}"  # type: ignore[return-value]


def plan_path(plan: object) -> Path | None:
    """The file of the plan, None if it is a spec or consists of normalizers."""
    if isinstance(plan, str) and plan.startswith(FILE_PREFIX):
        return Path(plan.removeprefix(FILE_PREFIX)).expanduser()
    if not isinstance(plan, (str, os.PathLike)):
        return None
    path = Path(plan).expanduser()
    if path.is_dir():
        inside = next((path / name for name in _FILES if (path / name).is_file()), None)
        if inside is None:
            raise AbbeError(f"{path} holds no plan ({', '.join(_FILES)}): name the file, or a spec")
        return inside
    return path if path.suffix == ".safetensors" or path.is_file() else None


def scales(plan: Plan) -> dict[Layer, Tensor] | None:
    """One factor of the logits per head (float64) by layer; None if a head gets more than a softmax temperature."""
    by_layer: dict[Layer, Tensor] = {}
    for layer, groups in plan.by_layer.items():
        by_layer[layer] = torch.ones(layer.heads, dtype=torch.float64)
        for group in groups:
            factor = (1.0,) if group.normalizer is None else _factor(group.normalizer)
            if factor is None:
                return None
            by_layer[layer][list(group.heads)] = torch.tensor(factor, dtype=torch.float64)
    return by_layer


def not_foldable(plan: Plan) -> list[str]:
    """The specs of the plan that are no factor of the logits, each once."""
    normalizers = (group.normalizer for groups in plan.values() for group in groups)
    return sorted({str(one) for one in normalizers if one is not None and _factor(one) is None})


def _factor(normalizer: Normalizer) -> tuple[float, ...] | None:
    """softmax(factor * logits): one number, or one per head of the group; None if the normalizer is another map."""
    if type(normalizer) is Softmax:
        return (1 / normalizer.temperature,)
    if normalizer.name == "learned-temperature":
        return _exponentials(normalizer.t)
    of = normalizer.of if normalizer.name == "scaled" else None
    inner = _factor(of) if isinstance(of, Normalizer) else None
    if inner is None:
        return None
    outer = _exponentials(normalizer.t)
    most = max(len(outer), len(inner))
    return tuple(a * b for a, b in zip(_repeated(outer, most), _repeated(inner, most), strict=True))


def _exponentials(logarithms: object) -> tuple[float, ...]:
    several = logarithms if isinstance(logarithms, tuple) else (logarithms,)
    return tuple(math.exp(float(one)) for one in several)


def _repeated(numbers: tuple[float, ...], most: int) -> tuple[float, ...]:
    return numbers * most if len(numbers) == 1 else numbers
