"""One call of attention within a network: its arguments and mask, checked, and what readers see of it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ... import normalizers
from ..._attention.attend import attention
from ..._attention.engine import beside_sink, compute_dtype, full_precision, grouped_scores, soft_cap, with_sink
from ..._errors import AbbeError
from ..._tensors import has_float64
from ...normalizers import Normalizer

SEEN = "abbe_seen"  # of a floating mask that abbe made: the same as bool


def causal_flag(module: nn.Module) -> bool | None:
    """Whether a module declares that its queries see no later keys; None if it declares nothing."""
    return bool(module.is_causal) if hasattr(module, "is_causal") else None


def is_causal(module: nn.Module) -> bool:
    """Whether an attention module has its keys in causal order: by its flag, its config and its kind."""
    setting = getattr(getattr(module, "config", None), "is_causal", None)
    cross = getattr(module, "is_cross_attention", False)
    return causal_flag(module) is not False and setting is not False and not cross


class MaskPolicy:
    """The mask function of one tapped model, and the rule for calls that have no mask.

    `is_eager` says of a config whether the model would compute eagerly by it.
    """

    def __init__(
        self, implementations: set[str | None], modules: Iterable[nn.Module], is_eager: Callable[[Any], bool]
    ) -> None:
        flags = {causal_flag(module) is not False for module in modules}
        self._as_sdpa = implementations == {"sdpa"}
        self._skip_causal = self._as_sdpa or flags == {True}
        # Unless causal masks are skipped, a missing mask shows all keys, as it does eagerly.
        self._skip_full = self._as_sdpa or False in flags
        self._is_eager = is_eager

    def make_mask(
        self, *, allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False,
        dtype: torch.dtype = torch.float32, config: Any = None, **options: Any,
    ) -> Tensor | None:  # fmt: skip
        """The mask that the model would have had, with the signature that transformers expects."""
        from transformers.masking_utils import sdpa_mask  # slow to import

        seen: Tensor | None = sdpa_mask(
            allow_is_causal_skip=allow_is_causal_skip and self._skip_causal,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip and self._skip_full,
            **options,
        )
        if seen is None or not self._is_eager(config):
            return seen
        mask = torch.where(seen, torch.zeros((), dtype=dtype, device=seen.device), torch.finfo(dtype).min)
        setattr(mask, SEEN, seen)
        return mask

    def is_causal(self, module: nn.Module, requested: bool | None, queries: int) -> bool:
        """Whether a call without a mask hides later keys; one query alone sees all keys."""
        if queries == 1:
            return False
        if not self._as_sdpa:
            return self._skip_causal
        return causal_flag(module) is not False if requested is None else requested


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
    # Of a network that is not from transformers: what it computes itself, and by which rule (None: softmax); and
    # whether the call is a repetition with other values.
    own: Callable[[], Tensor] | None = None
    rule: Rule | None = None
    again: bool = False

    @property
    def in_order(self) -> bool:
        return is_causal(self.module)


@dataclass(frozen=True, eq=False)
class HeadGroup:
    """Heads of one layer that share a normalizer.

    Attributes:
        pattern: that chose them.
        heads: their numbers, from 0.
        normalizer: None is the model's own attention.
    """

    pattern: str
    heads: tuple[int, ...]
    normalizer: Normalizer | None


Rule = tuple[HeadGroup, ...]  # what an attention module computes with: together all its heads
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
    indices = vars(module).get("masked_key_indices")  # getattr would search parameters and parts, too
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
    if not torch.compiler.is_compiling() and all(type(value) in (float, int, bool) for value in rest.values()):
        with suppress(AbbeError):  # which names the layer, below
            return _same_keywords(*query.shape[1::2], *rest.items())
    return _read(where, query.shape[1], query.shape[-1], rest)


@lru_cache(maxsize=64, typed=True)
def _same_keywords(heads: int, width: int, *items: tuple[str, Any]) -> Keywords:
    """Of numbers alone, which all layers and steps share: reading them anew takes a tenth of a step of generation."""
    return _read("", heads, width, dict(items))


def _read(where: str, heads: int, width: int, rest: dict[str, Any]) -> Keywords:
    refuse_weights(where, rest.pop("output_attentions", False))

    def take(name: str, wanted: str, fits: Callable[[Any], bool]) -> Any:
        value = rest.pop(name, None)
        if value is None or fits(value):
            return value
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise AbbeError(f"unsupported: {where} passes {name!r} that is not {wanted}; got {what}")

    def number(name: str) -> Any:
        value = take(name, "one number", _is_number)
        return float(value) if isinstance(value, Tensor) else value

    scale, softcap, window = number("scaling"), number("softcap"), number("sliding_window")
    sink = take("s_aux", f"one number per head ({heads})", lambda x: _is_floating(x) and x.numel() == heads)
    causal = rest.pop("is_causal", None)
    options = Keywords(
        scale=width**-0.5 if scale is None else scale,
        dropout=float(rest.pop("dropout", 0.0)),
        is_causal=None if causal is None else bool(causal),
        softcap=softcap,
        sink=None if sink is None else sink.reshape(heads),
        position_bias=take("position_bias", "a floating tensor with four dims", lambda x: _is_floating(x, 4)),
        window=None if window is None else int(window),
    )
    for name, value in rest.items():
        if value is not False:  # an option that is switched off changes nothing
            raise AbbeError(f"unsupported: {where} passes {name!r} to its attention, which abbe does not know")
    return options


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1)


def _is_floating(value: object, dims: int | None = None) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and dims in (None, value.dim())


def checked_mask(where: str, mask: object) -> Tensor | None:
    if mask is None:
        return None
    if isinstance(mask, Tensor) and mask.dim() == 4 and (mask.dtype == torch.bool or mask.is_floating_point()):
        return mask
    what = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
    raise AbbeError(f"unsupported: {where} has a mask that is not bool or floating with four dims; got {what}")


def refuse_weights(where: str, requested: object) -> None:
    """Refuse output_attentions, for which transformers would silently return an empty tuple."""
    if requested:
        raise AbbeError(
            f"{where} was asked for output_attentions, but no attention matrix is formed under a tap or swap; leave it "
            "out, and `listen` for the rows that you need"
        )


def model_attention(call: RawCall) -> Tensor:
    """(batch, queries, heads, value width): the model's own softmax, as transformers' SDPA function computes it."""
    if call.own is not None:
        return call.own()
    options = call.options
    if options.softcap is not None or options.sink is not None:  # transformers' function has neither
        return normalized_attention("softmax", call)
    from transformers.integrations.sdpa_attention import sdpa_attention_forward  # slow to import

    output: Tensor = sdpa_attention_forward(
        call.module, call.query, call.key, call.value, call.mask, dropout=options.dropout, scaling=options.scale,
        is_causal=call.causal, position_bias=options.position_bias,
    )[0]  # fmt: skip
    return output


def normalized_attention(normalizer: str | Normalizer, call: RawCall) -> Tensor:
    """(batch, queries, heads, value width) with this normalizer and all options of the call."""
    _, _, query, key, value, mask, causal, options = call[:8]
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


# Models hide a key by adding a large negative number to its logit: -10,000 in old modelling files, the smallest number
# of the dtype in newer ones. Real logits are never so far apart; the self-check would find a model where they are.
HIDDEN = -1e4


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One attention layer's inputs in one forward pass, as they meet in the dot product: after RoPE and cache update.

    Attributes:
        layer: number of the layer among those of its kind, from 0 in the order of calls.
        name: path of the attention module in the model, such as "model.layers.3.self_attn".
        kind: "self", or "cross" for attention to an encoder's states.
        query: (batch, heads, queries, width).
        key: (batch, key heads, keys, width); query head h reads key head h // (heads / key heads).
        value: (batch, key heads, keys, value width).
        scale: factor of the dot products.
        softcap: bound of the scaled scores, or None.
        sink: (heads,), the logit of an extra key without a value, or None.
        position_bias: broadcastable to (batch, heads, queries, keys), added to the scores, or None.
        window: the sliding window that the layer states, or None. The mask already contains it.
        mask: the model's own mask, broadcastable to (batch, heads, queries, keys): bool (True = attend), or floating
            and added to the scores; None if there is none.
        causal: whether key j is visible to query i only if j <= i; only without a mask.
        hidden: (batch, queries, hidden size), the input states of the attention module, or None.
        projection: the module that maps the heads' outputs back to the hidden size, or None if unknown.
        place: number of the layer among those of both kinds, as in `Tap.layers`; a module that is called several times
            per pass is several layers.
        rule: the normalizers that the layer computes with, by heads; None for softmax.
    """

    layer: int
    name: str
    kind: Literal["self", "cross"]
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    softcap: float | None = None
    sink: Tensor | None = None
    position_bias: Tensor | None = None
    window: int | None = None
    mask: Tensor | None = None
    causal: bool = False
    hidden: Tensor | None = None
    projection: nn.Module | None = None
    place: int = 0
    rule: Rule | None = None

    def for_measures(self) -> AttentionCall:
        """Itself, or a copy on the CPU if its device (Metal, some of Intel's) lacks float64, used for sums."""
        if has_float64(self.query.device):
            return self
        changed: dict[str, Any] = {name: part.cpu() for name, part in vars(self).items() if isinstance(part, Tensor)}
        if self.rule is not None:  # those that learn are where the layer is
            changed["rule"] = tuple(
                one if one.normalizer is None else replace(one, normalizer=deepcopy(one.normalizer).cpu())
                for one in self.rule
            )
        return replace(self, **changed)

    def of_heads(self, heads: Sequence[int]) -> AttentionCall:
        """The call as if the layer had these heads alone, which must share a normalizer.

        Args:
            heads: their numbers, rising.
        """
        count, chosen = self.query.shape[1], tuple(heads)
        if chosen == tuple(range(count)):
            return self
        shared = key_heads(chosen, count // self.key.shape[1])
        rule = [
            replace(one, heads=tuple(range(len(chosen))))
            for one in self.rule or ()
            if not {*chosen}.isdisjoint(one.heads)
        ]
        return replace(
            self, query=take(self.query, chosen, 1), key=take(self.key, shared, 1), value=take(self.value, shared, 1),
            sink=None if self.sink is None else take(self.sink, chosen, 0), rule=tuple(rule) or None,
            position_bias=take_of_each(self.position_bias, chosen), mask=take_of_each(self.mask, chosen),
        )  # fmt: skip

    def visible(self, queries: Tensor) -> Tensor:
        """Which keys these queries see.

        Args:
            queries: numbers of queries, 1-D int64.

        Returns:
            Bool (batch, 1 or heads, len(queries), keys).
        """
        batch, keys = self.key.shape[0], self.key.shape[-2]
        queries = self._checked(queries)
        if self.mask is not None:
            rows = _rows(self.mask, queries)
            rows = rows if rows.dtype == torch.bool else rows > HIDDEN
        elif self.causal:
            rows = (torch.arange(keys, device=queries.device) <= queries[:, None])[None, None]
        else:
            rows = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=queries.device)
        return rows.expand(batch, -1, len(queries), keys)

    def logits(self, queries: Tensor, *, sink: bool = False) -> Tensor:
        """The input of the normalizer for these queries, -inf at keys they cannot see.

        Args:
            queries: numbers of queries, 1-D int64.
            sink: put the layer's sink, if it has one, before the keys as an extra key.

        Returns:
            (batch, heads, len(queries), keys), float32, or float64 if the model computes in it.
        """
        queries, dtype = self._checked(queries), compute_dtype(self.query)
        with full_precision(self.query):
            scores = grouped_scores(self.query[:, :, queries].to(dtype) * self.scale, self.key.to(dtype))
            scores = soft_cap(scores, self.softcap)
            if self.position_bias is not None:
                scores += _rows(self.position_bias, queries)
            if self.mask is not None and self.mask.dtype != torch.bool:
                scores += _rows(self.mask, queries)
            # An added -10,000 leaves a weight of e^-10,000, but a finite logit: spreads and bounds would see it.
            scores.masked_fill_(~self.visible(queries), -math.inf)
            return with_sink(scores, self.sink) if sink and self.sink is not None else scores

    def weights(self, queries: Tensor | None = None, normalizer: str | Normalizer | None = None) -> Tensor:
        """The attention weights of these queries, or of all, before dropout.

        By the layer's own rule: softmax of `logits`, or the normalizers that are swapped in, with the sink, if any,
        taking its share. A query that sees no key gives zeros.

        Args:
            queries: numbers of queries, 1-D int64; None for all, which takes queries x keys memory.
            normalizer: another one (a spec or an instance), with the same logits and sink, as in `abbe.swap`.

        Returns:
            (batch, heads, len(queries), keys).

        Examples:
            >>> model, sums = abbe.load("embedded"), []
            >>> with abbe.tap(model) as t:
            ...     t.listen(lambda call: sums.append(call.weights(torch.tensor([9]), "sparsemax").sum(-1)))
            ...     _ = model(input_ids=torch.arange(16)[None])
            >>> bool((torch.stack(sums) - 1).abs().max() < 1e-5)
            True
        """
        if queries is None:
            queries = torch.arange(self.query.shape[-2], device=self.query.device)
        with full_precision(self.query):
            if normalizer is None:
                return self.weights_for(self.logits(queries))
            return beside_sink(normalizers.normalizer(normalizer), self.logits(queries), self.sink)

    @torch.no_grad()
    def weights_for(self, logits: Tensor) -> Tensor:
        """The weights that the layer's own rule makes of these logits, with the sink, without gradients.

        Args:
            logits: (batch, heads, queries, keys).
        """
        if self.rule is None:
            return beside_sink(normalizers.normalizer("softmax"), logits, self.sink)
        weights = torch.empty_like(logits)
        for group in self.rule:
            heads = list(group.heads)
            chosen = normalizers.normalizer("softmax") if group.normalizer is None else group.normalizer
            weights[:, heads] = beside_sink(chosen, logits[:, heads], None if self.sink is None else self.sink[heads])
        return weights

    def value_to_output(self) -> Tensor:
        """The part of the output projection's weight that belongs to each head.

        Returns:
            (heads, value width, hidden size).

        Raises:
            AbbeError: the projection is unknown, or not a plain linear map.
        """
        heads, width = self.query.shape[1], self.value.shape[-1]
        weight = _input_by_output(self.projection)
        if weight is None or weight.shape[0] != heads * width:
            why = "was not found" if self.projection is None else f"is a {type(self.projection).__name__}"
            raise AbbeError(
                f"{self.name}: its output projection {why}, so there are no output vectors; use value vectors instead"
            )
        return weight.to(self.query.device).view(heads, width, -1)

    def _checked(self, queries: Tensor) -> Tensor:
        length = self.query.shape[-2]
        if queries.dim() != 1 or queries.dtype != torch.long:
            raise AbbeError(f"queries must be a 1-D int64 tensor; got {queries.dtype} of shape {tuple(queries.shape)}")
        if queries.numel() and not 0 <= int(queries.min()) <= int(queries.max()) < length:
            raise AbbeError(f"queries must lie in 0 .. {length - 1}; got {int(queries.min())} .. {int(queries.max())}")
        return queries.to(self.query.device)


def key_heads(heads: tuple[int, ...], shared_by: int) -> tuple[int, ...]:
    """The key heads for these query heads: each once if all serve equally many, else one per query head."""
    each = [head // shared_by for head in heads]
    distinct = sorted(set(each))
    return tuple(distinct if len({each.count(head) for head in distinct}) == 1 else each)


def take(states: Tensor, heads: tuple[int, ...], axis: int) -> Tensor:
    """Some heads; a view where they are neighbours."""
    if heads[-1] - heads[0] + 1 == len(heads):
        return states.narrow(axis, heads[0], len(heads))
    return states.index_select(axis, torch.tensor(heads, device=states.device))


def take_of_each(table: Tensor | None, heads: tuple[int, ...]) -> Tensor | None:
    """The part of a mask or bias (batch, 1 or heads, queries, keys)."""
    return table if table is None or table.shape[1] == 1 else take(table, heads, 1)


def _rows(table: Tensor, queries: Tensor) -> Tensor:
    return table if table.shape[-2] == 1 else table[..., queries, :]


def _input_by_output(projection: nn.Module | None) -> Tensor | None:
    """The weight of a linear map as (input, output), None for anything else."""
    weight = getattr(projection, "weight", None)
    # Packed, or offloaded by accelerate until the projection runs: it cannot be read.
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point() or weight.is_meta:
        return None
    # Conv1D, the linear layer of GPT-2, stores the transpose.
    return (weight.T if isinstance(projection, nn.Linear) else weight).detach().contiguous()
