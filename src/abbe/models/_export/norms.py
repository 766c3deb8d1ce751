"""The fold behind a norm of the queries (QK-norm), which would undo any factor before it.

What is special: how a norm uses its weight (w, or 1 + w in Gemma) is not looked up but tried: the norm with the new
weight must give the scaled output.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from .changes import Changes, per_output
from .queries import QueryShape

_NAMES = ("q_norm", "q_layernorm", "query_layernorm", "q_ln", "query_norm", "qk_norm", "qk_layernorm")
_CLOSE = 1e-5  # of two float32 results of the same formula


def query_norm(module: nn.Module) -> tuple[str, nn.Module] | None:
    """The norm that the queries of an attention module go through, if it has one."""
    for name in _NAMES:
        norm = getattr(module, name, None)
        if isinstance(norm, nn.Module) and not isinstance(norm, nn.Identity):
            return name, norm
    return None


def fold_into_norm(
    changes: Changes, where: str, name: str, norm: nn.Module, shape: QueryShape, factors: Tensor
) -> None:
    """Multiply what the norm gives: all heads alike where they share its weight."""
    parameters = dict(norm.named_parameters())
    weight = parameters.get("weight")
    if weight is None or not parameters.keys() <= {"weight", "bias"} or name.startswith("qk"):
        raise AbbeError(
            f"cannot fold: the queries of {where} go through {name} ({type(norm).__name__}), which undoes any factor "
            "before it and has no weight of theirs alone behind it"
        )
    factor = _per_weight(where, name, weight, shape, factors)
    width = shape.width if weight.numel() == shape.width or weight.dim() == 2 else shape.heads * shape.width
    inputs = torch.randn(2, shape.heads * shape.width // width, width, generator=torch.Generator().manual_seed(0))
    wanted = _outcome(norm, inputs) * (factor if factor.dim() else float(factor))
    for offset in (0.0, 1.0):  # w, or 1 + w
        values = {"weight": ((weight.detach().double() + offset) * factor - offset).to(weight.dtype)}
        if "bias" in parameters:
            values["bias"] = (parameters["bias"].detach().double() * factor).to(weight.dtype)
        trial = copy.deepcopy(norm)
        with torch.no_grad():
            for key, value in values.items():
                dict(trial.named_parameters())[key].copy_(value)
        if torch.allclose(_outcome(trial, inputs), wanted, rtol=_CLOSE, atol=_CLOSE):
            for key, value in values.items():
                changes.put(where, parameters[key], value)
            return
    raise AbbeError(f"cannot fold: how {name} ({type(norm).__name__}) of {where} uses its weight is not known")


def _outcome(norm: nn.Module, inputs: Tensor) -> Tensor:
    weight = next(norm.parameters())
    with torch.no_grad():
        outcome: Tensor = norm(inputs.to(weight))
    return outcome.double().cpu()


def _per_weight(where: str, name: str, weight: Tensor, shape: QueryShape, factors: Tensor) -> Tensor:
    """The factor of each entry of the norm's weight."""
    if weight.numel() == shape.heads * shape.width and shape.heads > 1:
        return per_output(factors, shape.width).view(weight.shape)
    if weight.numel() != shape.width:
        raise AbbeError(f"cannot fold: {name} of {where} has {weight.numel()} weights for heads of width {shape.width}")
    if not bool((factors == factors[0]).all()):
        raise AbbeError(
            f"cannot fold temperatures per head: the queries of {where} go through {name}, whose weight all heads "
            "share; give all heads of a layer the same temperature"
        )
    return factors[0].repeat(shape.width).view(weight.shape)
