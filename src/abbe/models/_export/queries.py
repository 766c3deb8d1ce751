"""Where the query projection of an attention module lies, and the fold of factors per head into it.

What is special: a factor of the logits is a factor of the query, whatever linear map (rotary positions) comes between
and however many query heads share a key. A layout is used only where it is known; all else is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from .changes import Changes, per_output

# Projections to queries alone, head by head. `q_b_proj` is the second half of a low-rank one.
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


@dataclass(frozen=True)
class QueryShape:
    """What a call of the module has shown."""

    heads: int
    width: int


def fold_into_queries(changes: Changes, where: str, module: nn.Module, shape: QueryShape, factors: Tensor) -> None:
    """Multiply the rows of the query projection, and its bias, by the factors of their heads."""
    _refuse_clipping(where, module)
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
    """nn.Linear holds (output, input); Conv1D, GPT-2's linear layer, (input, output)."""
    return type(projection).__name__ == "Conv1D"


def _outputs(projection: Any) -> int:
    return int(projection.weight.shape[1 if _is_transposed(projection) else 0])


def _check_linear(where: str, module: nn.Module, name: str) -> None:
    projection = getattr(module, name)
    if type(projection) is not nn.Linear and not _is_transposed(projection):
        kind = type(projection).__name__
        raise _unknown(where, module, f"its {name} is a {kind}; merge adapters into the weights, or dequantise it")


def _refuse_clipping(where: str, module: nn.Module) -> None:
    clip = getattr(getattr(module, "config", None), "clip_qkv", None)
    if clip is not None:
        raise AbbeError(f"cannot fold: {where} clips its queries (clip_qkv={clip}), which no scaled projection repeats")


def _unknown(where: str, module: nn.Module, why: str) -> AbbeError:
    return AbbeError(f"cannot fold into {type(module).__name__} ({where}): {why}")
