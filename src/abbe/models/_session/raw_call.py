"""One call of an attention function in transformers' signature: its arguments, read and checked once, and its output.

What is special: no keyword is ignored because it is unknown. One that abbe does not know and that might change the
weights ends the run with its name, since a wrong capture would look like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..._attention.attend import attention
from ..._errors import AbbeError
from ...normalizers import Normalizer
from .call import HIDDEN
from .masks import SEEN

# Without effect on the weights where transformers computes with SDPA or eagerly: bookkeeping of the model's outputs and
# losses, positions (already in q and k), and options of flash attention.
HARMLESS = frozenset(
    {
        "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "deterministic", "input_ids", "logits_to_keep",
        "max_length_k", "max_length_q", "num_items_in_batch", "output_hidden_states", "output_router_logits",
        "position_embeddings", "position_ids", "return_dict", "seq_idx", "use_cache",
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


class RawCall(NamedTuple):
    """One call of the attention function, read and checked; `where` names model and layer in errors."""

    where: str
    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    options: Keywords


Attend = Callable[[RawCall], Tensor]
IsCausal = Callable[[nn.Module, Tensor, Tensor | None, Keywords], bool]  # of a call's module, query, mask and options


def attention_function(
    where: Callable[[nn.Module], str], is_causal: IsCausal, attend: Attend
) -> Callable[..., tuple[Tensor, None]]:
    """The function that transformers calls, with the signature that it expects."""

    def function(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        dropout: float = 0.0, **keywords: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        name = where(module)
        options = read_keywords(name, query, keywords | {"dropout": dropout})
        mask = checked_mask(name, getattr(attention_mask, SEEN, attention_mask))
        causal = is_causal(module, query, mask, options)
        if (kept := _kept_keys(name, module, query, key, options.window)) is not None:
            mask, causal = _masked(mask, causal, kept, query.shape[-2]), False
        return attend(RawCall(name, module, query, key, value, mask, causal, options)), None

    return function


def _kept_keys(where: str, module: nn.Module, query: Tensor, key: Tensor, window: int | None) -> Tensor | None:
    """Which keys each head keeps, bool (batch, heads, 1, keys), where a head-wise press of kvpress cuts some.

    kvpress wraps the attention functions that are registered when it is imported, and overwrites these keys by ones
    whose softmax weight is 0. Hidden, they are absent for any normalizer, also where abbe's function is not wrapped.
    """
    if query.shape[-2] == key.shape[-2]:
        if not torch.compiler.is_compiling() and "kvpress" in sys.modules:
            module.masked_key_indices = None  # type: ignore[assignment]  # as in its wrapper: a new text begins
        return None
    indices = getattr(module, "masked_key_indices", None)
    if indices is None:
        return None
    if window is not None and key.shape[-2] >= window:
        raise AbbeError(
            f"unsupported: {where} has keys that a press of kvpress cuts by their place in the cache "
            "(masked_key_indices), and a sliding window that moves them; use a press that cuts all heads alike"
        )
    kept = torch.ones(key.shape[:3], dtype=torch.bool, device=key.device)
    kept[tuple(indices)] = False
    return kept.repeat_interleave(query.shape[1] // key.shape[1], 1)[:, :, None]


def _masked(mask: Tensor | None, causal: bool, kept: Tensor, queries: int) -> Tensor:
    """The mask without the keys that are not kept."""
    if mask is None:
        # The first query sits at the first key.
        return (
            kept & torch.ones(queries, kept.shape[-1], dtype=torch.bool, device=kept.device).tril() if causal else kept
        )
    return mask & kept if mask.dtype == torch.bool else mask.masked_fill(~kept, torch.finfo(mask.dtype).min)


def read_keywords(where: str, query: Tensor, keywords: Mapping[str, Any]) -> Keywords:
    """The keywords of one call that shape the weights; `where` names model and layer in errors."""
    # None means that the model leaves an option open.
    rest = {name: value for name, value in keywords.items() if value is not None and name not in HARMLESS}
    refuse_weights(where, rest.pop("output_attentions", False))
    scale, softcap = rest.pop("scaling", query.shape[-1] ** -0.5), rest.pop("softcap", None)
    causal, window = rest.pop("is_causal", None), rest.pop("sliding_window", None)
    options = Keywords(
        scale=_number(where, "scaling", scale),
        dropout=float(rest.pop("dropout", 0.0)),
        is_causal=None if causal is None else bool(causal),
        softcap=None if softcap is None else _number(where, "softcap", softcap),
        sink=_sink(where, rest.pop("s_aux", None), query.shape[1]),
        position_bias=_position_bias(where, rest.pop("position_bias", None)),
        window=None if window is None else int(_number(where, "sliding_window", window)),
    )
    for name, value in rest.items():
        if value is not False:  # an option that is switched off changes nothing
            raise AbbeError(f"unsupported: {where} passes {name!r} to its attention, which abbe does not know")
    return options


def checked_mask(where: str, mask: object) -> Tensor | None:
    if mask is None:
        return None
    if isinstance(mask, Tensor) and mask.dim() == 4 and (mask.dtype == torch.bool or mask.is_floating_point()):
        return mask
    what = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
    raise AbbeError(f"unsupported: {where} has a mask that is not bool or floating with four dims; got {what}")


def refuse_weights(where: str, requested: object) -> None:
    """For output_attentions transformers would silently return an empty tuple."""
    if requested:
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


def model_attention(call: RawCall) -> Tensor:
    """(batch, queries, heads, value width): the model's own softmax, as transformers' SDPA function computes it."""
    options = call.options
    if options.softcap is not None or options.sink is not None:  # transformers' function has neither
        return normalized_attention("softmax", call)
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    output: Tensor = sdpa_attention_forward(
        call.module, call.query, call.key, call.value, call.mask, dropout=options.dropout, scaling=options.scale,
        is_causal=call.causal, position_bias=options.position_bias,
    )[0]  # fmt: skip
    return output


def normalized_attention(normalizer: str | Normalizer, call: RawCall) -> Tensor:
    """(batch, queries, heads, value width) with this normalizer and all options of the call."""
    _, _, query, key, value, mask, causal, options = call
    bias = options.position_bias
    if causal:
        # The first query sits at the first key, also with a static cache; abbe.attention aligns the last.
        length = query.shape[-2]
        key, value, bias = key[:, :, :length], value[:, :, :length], None if bias is None else bias[..., :length]
    if mask is not None and mask.dtype != torch.bool:
        bias, mask = mask if bias is None else bias + mask, mask > HIDDEN
    output = attention(
        query, key, value, normalizer, mask=mask, causal=causal, scale=options.scale, softcap=options.softcap,
        sink=options.sink, position_bias=bias, dropout=options.dropout,
    )  # fmt: skip
    return output.transpose(1, 2).contiguous()
