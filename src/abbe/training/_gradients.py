"""Gradient norms of queries, keys and values by head, read by tensor hooks that change nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._float64 import where_double
from ..measures import State
from ..models import HeardCall

PARTS = ("query", "key", "value")


class Gradients:
    """Sums of squares over all sequences, positions and micro-batches of one step.

    A layer that runs again in the backward pass hooks its tensors again. Only one of the two graphs is walked (without
    reentrance the first; with it the second, since the first pass has no graph then), so nothing counts twice.
    """

    def __init__(self, guard: Callable[[Callable[[], None]], None]) -> None:
        self._guard = guard
        self._squares: dict[int, State] = {}

    def watch(self, call: HeardCall) -> None:
        heads = call.query.shape[1]
        for part in PARTS:
            tensor: Any = getattr(call, part)
            if tensor.requires_grad:
                add = partial(self._add, call.layer, part, heads)
                tensor.register_hook(lambda gradient, add=add: self._guard(lambda: add(gradient.detach())))

    def of_layer(self, layer: int) -> State:
        return self._squares.get(layer, {})

    @torch.no_grad()
    def _add(self, layer: int, part: str, heads: int, gradient: Tensor) -> None:
        norms = where_double(torch.linalg.vector_norm(gradient, dim=(0, 2, 3), dtype=torch.float32)).double()
        # Heads that share keys and values also share their gradient.
        squares = norms.square().repeat_interleave(heads // len(norms))
        sums, name = self._squares.setdefault(layer, {}), f"{part}_gradient/squares"
        sums[name] = sums[name] + squares if name in sums else squares
