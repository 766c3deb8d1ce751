"""The specification of attention: one query of one head at a time, its hidden keys really left out."""

import math

import torch
from torch import Tensor

from abbe.normalizers import Normalizer


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
    repeats = heads // k.shape[-3]
    k, v = k.repeat_interleave(repeats, -3), v.repeat_interleave(repeats, -3)
    scores = torch.einsum("...qd,...kd->...qk", q, k) * (1 / math.sqrt(width) if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    batch = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    scores = scores.expand(*batch, *scores.shape[-3:])
    if position_bias is not None:
        scores = scores + position_bias
    visible = allowed(queries, k.shape[-2], causal, window).expand(scores.shape)
    if mask is not None:
        visible = visible & mask
    rows = zip(scores.flatten(0, -4) if batch else scores[None], visible.flatten(0, -4) if batch else visible[None])
    weights = [
        torch.stack([torch.stack([row(normalizer, s[h, i], m[h, i], h, heads, sink) for i in range(queries)]) for h in range(heads)])
        for s, m in rows
    ]
    stacked = torch.stack(weights).reshape(scores.shape) if weights and queries else torch.zeros_like(scores)
    return torch.einsum("...qk,...kd->...qd", stacked, v.expand(*batch, *v.shape[-3:])), stacked


def allowed(queries: int, keys: int, causal: bool, window: int | None) -> Tensor:
    table = torch.ones(queries, keys, dtype=torch.bool)
    for i in range(queries):
        for j in range(keys):
            position = i + keys - queries
            table[i, j] = (not causal or j <= position) and (window is None or abs(position - j) < window)
    return table


def row(normalizer: Normalizer, scores: Tensor, visible: Tensor, head: int, heads: int, sink: Tensor | None) -> Tensor:
    """Weights (Lk,) of one query; the normalizer sees the visible keys and, if there is one, the sink."""
    present = scores[visible]
    weights = torch.zeros_like(scores)
    if len(present) == 0:
        return weights
    if sink is not None:
        present = torch.cat([sink[head : head + 1], present])
    # parameters of a normalizer are (H, 1, 1): give it all heads, keep one
    found = normalizer(present.expand(heads, 1, -1))[head, 0]
    return weights.masked_scatter(visible, found if sink is None else found[1:])
