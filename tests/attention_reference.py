"""The specification of attention: one query of one head at a time, hidden keys really left out, k and v repeated."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from abbe import Normalizer


def reference(
    q: Tensor,  # (..., H, Lq, D)
    k: Tensor,  # (..., Hkv, Lk, D)
    v: Tensor,  # (..., Hkv, Lk, Dv)
    normalizer: Normalizer,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    position_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output (..., H, Lq, Dv) and weights (..., H, Lq, Lk)."""
    heads, queries, width = q.shape[-3:]
    k, v = (t.repeat_interleave(heads // t.shape[-3], -3) for t in (k, v))
    batch = torch.broadcast_shapes(*(t.shape[:-3] for t in (q, k, v)))
    full = (*batch, heads, queries, k.shape[-2])
    scores = torch.einsum("...qd,...kd->...qk", q, k) * (1 / math.sqrt(width) if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.expand(full) + (0 if position_bias is None else position_bias)
    visible = near(queries, k.shape[-2], causal, window).expand(full) & (True if mask is None else mask)
    rows = zip(scores.reshape(-1, full[-1]), visible.reshape(-1, full[-1]), strict=True)
    by_row = [row_weights(normalizer, s, m, i // queries % heads, heads, sink) for i, (s, m) in enumerate(rows)]
    weights = torch.stack(by_row).reshape(full)
    return torch.einsum("...qk,...kd->...qd", weights, v.expand(*batch, *v.shape[-3:])), weights


def near(queries: int, keys: int, causal: bool, window: int | None) -> Tensor:
    """What causal and window leave visible, (Lq, Lk): the last query is at the position of the last key."""
    table = torch.ones(queries, keys, dtype=torch.bool)
    for i in range(queries):
        position = i + keys - queries
        for j in range(keys):
            table[i, j] = (not causal or j <= position) and (window is None or abs(position - j) < window)
    return table


def row_weights(
    normalizer: Normalizer, scores: Tensor, visible: Tensor, head: int, heads: int, sink: Tensor | None
) -> Tensor:
    """Weights (Lk,) of one query: the normalizer gets the sink, if there is one, and the visible keys."""
    weights = torch.zeros_like(scores)
    present = scores[visible]
    if len(present) == 0:
        return weights
    if sink is not None:
        present = torch.cat([sink[head : head + 1], present])
    every_head = normalizer(present.expand(heads, 1, -1))  # its parameters are (H, 1, 1)
    return weights.masked_scatter(visible, every_head[head, 0, -int(visible.sum()) :])
