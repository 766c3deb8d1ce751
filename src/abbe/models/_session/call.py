"""AttentionCall: the inputs of one attention layer, and logits, weights and visible keys of any of its queries.

What is special: nothing here is ever Lq x Lk unless the model itself built such a tensor. A consumer gets the rows of
the queries that it names; grouped-query heads share their keys without copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ... import normalizers
from ..._attention.engine import beside_sink, compute_dtype, full_precision, grouped_scores, soft_cap, with_sink
from ..._errors import AbbeError
from ..._float64 import has_float64
from ...normalizers import Normalizer

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

    def for_measures(self) -> AttentionCall:
        """Itself, or a copy on the CPU if its device (Metal, some of Intel's) lacks float64, used for sums."""
        if has_float64(self.query.device):
            return self
        tensors: dict[str, Any] = {name: part.cpu() for name, part in vars(self).items() if isinstance(part, Tensor)}
        return replace(self, **tensors)

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

        By the model's own rule: softmax of `logits`, with the sink, if any, taking its share of the 1. A query that
        sees no key gives zeros.

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
        rule = normalizers.normalizer("softmax" if normalizer is None else normalizer)
        with full_precision(self.query):
            return beside_sink(rule, self.logits(queries), self.sink)

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
