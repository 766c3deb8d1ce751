"""The fold of one factor per head into the queries of an attention module: into their projection, or their norm.

What is special: a factor of the logits is a factor of the query, whatever linear map (rotary positions) comes between
and however many query heads share a key. A layout must be known; any other is refused by name. A norm of the queries
(QK-norm) would undo any factor before it; how it uses its weight (w, or 1 + w in Gemma) is not looked up but tried: the
norm with the new weight must give the scaled output.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from .changes import Changes, per_output

# Projections to queries alone, head by head. `q_b_proj` is the second half of a low-rank projection.
_SEPARATE = ("q_b_proj", "q_proj", "query", "q", "q_lin", "q_attn")
# Projections to queries, keys and values together, by the class of the attention module.
_FIRST, _BY_HEAD = "first", "by head"
_TOGETHER = {
    "GPT2Attention": ("c_attn", _FIRST),
    "Phi3Attention": ("qkv_proj", _FIRST),
    "ModernBertAttention": ("Wqkv", _FIRST),
    "GPTNeoXAttention": ("query_key_value", _BY_HEAD),
    "PersimmonAttention": ("query_key_value", _BY_HEAD),
}


_NORMS = ("q_norm", "q_layernorm", "query_layernorm", "q_ln", "query_norm", "qk_norm", "qk_layernorm")
_CLOSE = 1e-5  # of two float32 results of the same formula


class QueryShape(NamedTuple):
    heads: int
    width: int


def fold_into_queries(changes: Changes, where: str, module: nn.Module, shape: QueryShape, factors: Tensor) -> None:
    """Multiply the rows of the query projection, and its bias, by the factors of their heads."""
    clip = getattr(getattr(module, "config", None), "clip_qkv", None)
    if clip is not None:
        raise AbbeError(f"cannot fold: {where} clips its queries (clip_qkv={clip}), which no scaled projection repeats")
    name, outputs = _layout(where, module, shape, factors)
    projection = getattr(module, name)
    weight, bias = projection.weight, getattr(projection, "bias", None)
    if _outputs(projection) != len(outputs):
        wanted = f"not the {len(outputs)} of {shape.heads} heads of width {shape.width}"
        raise _unknown(where, module, f"its {name} has {_outputs(projection)} outputs, {wanted}")
    changes.scale(where, weight, outputs[None] if _is_transposed(projection) else outputs[:, None])
    if bias is not None:
        changes.scale(where, bias, outputs)


def _layout(where: str, module: nn.Module, shape: QueryShape, factors: Tensor) -> tuple[str, Tensor]:
    """The name of the projection, and the factor of each of its outputs."""
    queries = per_output(factors, shape.width)
    name = next((name for name in _SEPARATE if isinstance(getattr(module, name, None), nn.Module)), None)
    if name is not None and (name != "q_attn" or getattr(module, "is_cross_attention", False)):
        _check_linear(where, module, name)
        return name, queries
    known = _TOGETHER.get(type(module).__name__)
    if known is None:
        raise _unknown(where, module, "no projection to queries alone has a name that abbe knows")
    name, order = known
    _check_linear(where, module, name)
    if order == _FIRST:
        others = _outputs(getattr(module, name)) - len(queries)
        return name, torch.cat([queries, queries.new_ones(max(0, others))])
    by_head = torch.ones(shape.heads, 3, shape.width, dtype=queries.dtype)
    by_head[:, 0] = factors[:, None]
    return name, by_head.flatten()


def _is_transposed(projection: Any) -> bool:
    """nn.Linear holds (output, input); Conv1D, the linear layer of GPT-2, (input, output)."""
    return type(projection).__name__ == "Conv1D"


def _outputs(projection: Any) -> int:
    return int(projection.weight.shape[1 if _is_transposed(projection) else 0])


def _check_linear(where: str, module: nn.Module, name: str) -> None:
    projection = getattr(module, name)
    if type(projection) is not nn.Linear and not _is_transposed(projection):
        kind = type(projection).__name__
        raise _unknown(where, module, f"its {name} is a {kind}; merge adapters into the weights, or dequantise it")


def _unknown(where: str, module: nn.Module, why: str) -> AbbeError:
    return AbbeError(f"cannot fold into {type(module).__name__} ({where}): {why}")


def query_norm(module: nn.Module) -> tuple[str, nn.Module] | None:
    for name in _NORMS:
        norm = getattr(module, name, None)
        if isinstance(norm, nn.Module) and not isinstance(norm, nn.Identity):
            return name, norm
    return None


def fold_into_norm(
    changes: Changes, where: str, name: str, norm: nn.Module, shape: QueryShape, factors: Tensor
) -> None:
    """Multiply the output of the norm; heads that share its weight need the same factor."""
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
    wanted = _outcome(norm, inputs) * factor
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
    with torch.no_grad():
        outcome: Tensor = norm(inputs.to(next(norm.parameters())))
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
