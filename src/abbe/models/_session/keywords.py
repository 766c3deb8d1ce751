"""What transformers passes to an attention function besides q, k, v and the mask: honoured, harmless, or refused.

What is special: no keyword is ignored because it is unknown. One that might change the weights and that abbe does not
know ends the run with its name, since a wrong capture would look like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._errors import AbbeError

# Of no effect on the weights where transformers computes with SDPA or eagerly: bookkeeping of the model's outputs and
# losses, positions (already in q and k), and what only flash attention reads.
HARMLESS = frozenset(
    {
        "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "deterministic", "logits_to_keep", "max_length_k",
        "max_length_q", "num_items_in_batch", "output_hidden_states", "output_router_logits", "position_embeddings",
        "position_ids", "return_dict", "seq_idx", "use_cache",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Keywords:
    """The keywords that shape the weights."""

    scale: float
    dropout: float = 0.0
    is_causal: bool | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    position_bias: Tensor | None = None
    window: int | None = None


def read_keywords(where: str, query: Tensor, given: Mapping[str, Any]) -> Keywords:
    """Take what is known from the keywords of one call; `where` names model and layer in errors."""
    # None is an option that the model leaves open.
    rest = {name: value for name, value in given.items() if value is not None and name not in HARMLESS}
    refuse_weights(where, rest.pop("output_attentions", False))
    scale, softcap = rest.pop("scaling", query.shape[-1] ** -0.5), rest.pop("softcap", None)
    causal, window = rest.pop("is_causal", None), rest.pop("sliding_window", None)
    known = Keywords(
        scale=_number(where, "scaling", scale),
        dropout=float(rest.pop("dropout", 0.0)),
        is_causal=None if causal is None else bool(causal),
        softcap=None if softcap is None else _number(where, "softcap", softcap),
        sink=_sink(where, rest.pop("s_aux", None), query.shape[1]),
        position_bias=_position_bias(where, rest.pop("position_bias", None)),
        window=None if window is None else int(_number(where, "sliding_window", window)),
    )
    for name, value in rest.items():
        # What is switched off changes nothing.
        if value is not False:
            raise AbbeError(f"unsupported: {where} passes {name!r} to its attention, which abbe does not know")
    return known


def checked_mask(where: str, mask: object) -> Tensor | None:
    """The model's mask as it is, if it is one that abbe can read."""
    if mask is None or (isinstance(mask, Tensor) and mask.dim() == 4 and _is_mask_dtype(mask)):
        return mask
    what = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
    raise AbbeError(f"unsupported: {where} has a mask that is not bool or floating with four dims; got {what}")


def _is_mask_dtype(mask: Tensor) -> bool:
    return mask.dtype == torch.bool or mask.is_floating_point()


def refuse_weights(where: str, asked: object) -> None:
    """transformers would give an empty tuple for output_attentions, without a word."""
    if asked:
        raise AbbeError(
            f"{where} was asked for output_attentions, but no attention matrix is formed under a tap or swap; leave it "
            "out, and `listen` for the rows that you need"
        )


def _number(where: str, name: str, value: object) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, (int, float)):
        return value
    what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise AbbeError(f"unsupported: {where} passes {name!r} that is not one number; got {what}")


def _sink(where: str, sink: object, heads: int) -> Tensor | None:
    if sink is None:
        return None
    if not isinstance(sink, Tensor) or sink.numel() != heads or not sink.is_floating_point():
        what = f"shape {tuple(sink.shape)}" if isinstance(sink, Tensor) else repr(sink)
        raise AbbeError(f"unsupported: {where} passes 's_aux' that is not one number per head ({heads}); got {what}")
    return sink.reshape(heads)


def _position_bias(where: str, bias: object) -> Tensor | None:
    if bias is None:
        return None
    if not isinstance(bias, Tensor) or bias.dim() != 4 or not bias.is_floating_point():
        raise AbbeError(f"unsupported: {where} passes 'position_bias' that is not a floating tensor with four dims")
    return bias
