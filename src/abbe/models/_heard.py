"""One call of an attention function in a training step, as a listener hears it, and the rows of some of its queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ._session.call import AttentionCall
from ._session.masks import causal_flag
from ._session.raw_call import Keywords, checked_mask, read_keywords
from ._session.reader import detached


@dataclass(frozen=True, eq=False)
class HeardCall:
    """One call of an attention function in a training step: queries, keys and values carry their gradients' graph.

    Attributes:
        layer: counts attention layers in the order of their first call.
        name: path of the attention module in the model.
        kind: "self" or "cross".
        module: the attention module.
        inputs: the arguments of its forward.
        query: (batch, heads, queries, width).
        key: (batch, key heads, keys, width).
        value: (batch, key heads, keys, value width).
        mask: argument of its attention function.
        keywords: the other arguments of its attention function.
        eager: whether that function is transformers' plain one.
        output: of that function.
    """

    layer: int
    name: str
    kind: Literal["self", "cross"]
    module: nn.Module
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    keywords: Mapping[str, Any]
    eager: bool
    output: Tensor | None = None

    @property
    def dropout(self) -> float:
        """Probability of dropping a weight."""
        return float(self.keywords.get("dropout") or 0.0)

    def rows(self, positions: Tensor, start: int = 0, stop: int | None = None) -> AttentionCall:
        """The call cut to some queries (its queries 0, 1, ...) and sequences.

        Args:
            positions: of the queries, (query,).
            start: the first sequence of the batch.
            stop: one past the last sequence; None for all.
        """
        positions, part = positions.to(self.query.device), slice(start, stop)
        query = self.query.detach()[part][:, :, positions]
        options = self._options
        bias = _cut(detached(options.position_bias), positions, part)
        return AttentionCall(
            self.layer, self.name, self.kind, query, self.key.detach()[part], self.value.detach()[part], options.scale,
            options.softcap, detached(options.sink), bias, options.window, self._row_mask(positions, part),
        )  # fmt: skip

    @cached_property
    def _options(self) -> Keywords:
        return read_keywords(self.name, self.query, {**self.keywords, "output_attentions": None})

    def _row_mask(self, positions: Tensor, part: slice) -> Tensor | None:
        """Which keys these rows see. Flash attention gets padding as (batch, key), and all else from flags."""
        if isinstance(self.mask, Tensor) and self.mask.dim() == 4:
            return _cut(checked_mask(self.name, self.mask.detach()), positions, part)
        keys = torch.arange(self.key.shape[-2], device=positions.device)
        seen = torch.ones(1, 1, len(positions), len(keys), dtype=torch.bool, device=positions.device)
        if self._is_causal:
            seen &= keys <= positions[:, None]
            if self._options.window is not None:
                seen &= keys > positions[:, None] - self._options.window
        if isinstance(self.mask, Tensor) and self.mask.dim() == 2:
            seen = seen & self.mask.detach()[part, None, None, : len(keys)].bool()
        elif self.mask is not None:
            checked_mask(self.name, self.mask)
        return seen

    @property
    def _is_causal(self) -> bool:
        """Whether later keys are hidden without a mask of four dims; eager attention hides keys by its mask alone."""
        if self.eager or self.query.shape[-2] == 1:
            return False
        requested = self._options.is_causal
        return causal_flag(self.module) is not False if requested is None else requested


def _cut(table: Tensor | None, positions: Tensor, part: slice) -> Tensor | None:
    if table is None:
        return None
    table = table if len(table) == 1 else table[part]
    return table if table.shape[-2] == 1 else table[..., positions, :]
