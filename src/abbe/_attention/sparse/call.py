"""One call of sparse attention: its settings, its tensors, and its blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..._kernels.packing import products_pay
from ..blocks import spans, visible_distances

# Of scores. A block should stay in the caches of two cores, and have enough queries for an efficient matrix product.
SCORE_BYTES = 4 * 2**20
MIN_QUERIES, MAX_QUERIES = 64, 128
# If the kernel computes the scores, only the support of a block is written to its memory: blocks may be larger, so that
# there are few.
PACKED_BLOCK, PACKED_QUERIES = 3 * SCORE_BYTES, 512
PACKED_FROM = 32  # queries: for fewer, packing the keys costs more than it saves


class Settings(NamedTuple):
    """All of a call but its tensors: plain numbers and a name, which a custom operator can carry."""

    name: str  # of the map
    scale: float
    softcap: float | None
    causal: bool
    window: int | None
    dropout: float


class Tensors(NamedTuple):
    """Contiguous float32 tensors with one batch dim, on the CPU; or their gradients."""

    q: Tensor  # (B, H, Lq, D)
    k: Tensor  # (B, Hkv, Lk, D)
    v: Tensor  # (B, Hkv, Lk, Dv)
    mask: Tensor | None  # bool, (B or 1, H or 1, Lq or 1, Lk or 1)
    bias: Tensor | None  # as the mask, but floating
    sink: Tensor | None  # (H,)
    params: Tensor  # of the map, broadcastable to (B, H, Lq, P)


class Block(NamedTuple):
    """Some batch elements, key heads and queries, and the keys that these queries can see."""

    batch: slice
    key_heads: slice
    queries: slice
    keys: slice

    def heads(self, tensors: Tensors) -> slice:
        group = tensors.q.shape[1] // tensors.k.shape[1]
        return slice(self.key_heads.start * group, self.key_heads.stop * group)


class Support(NamedTuple):
    """The support of a block's rows, which are ordered by batch element, head and query."""

    block: Block
    counts: Tensor  # (rows,)
    places: Tensor  # (n,) int32, keys
    weights: Tensor  # (n,)
    sink_weights: Tensor  # (rows,), or (0,) without a sink


def packs(settings: Settings, tensors: Tensors) -> bool:
    """Whether kernels compute the scores: these need no cap, bias or mask, and there are many queries."""
    modified = settings.softcap is not None or tensors.bias is not None or tensors.mask is not None
    return not modified and tensors.q.shape[2] >= PACKED_FROM and products_pay()


def blocks(settings: Settings, tensors: Tensors) -> Iterator[Block]:
    """All blocks in which some query can see some key; the queries of a key head come in order."""
    batch, heads, queries, _ = tensors.q.shape
    key_heads, keys = tensors.k.shape[1:3]
    nearest, farthest = visible_distances(settings.causal, settings.window, tensors.q, tensors.k)
    size, most = (PACKED_BLOCK, PACKED_QUERIES) if packs(settings, tensors) else (SCORE_BYTES, MAX_QUERIES)
    in_block = max(1, size // 4 // min(keys, farthest - nearest + most))  # rows of scores
    step = min(max(in_block // (heads * batch), MIN_QUERIES), most, queries)
    heads_per_block = max(1, min(key_heads, in_block // (step * heads // key_heads)))
    batch_per_block = max(1, in_block // (step * heads)) if heads_per_block == key_heads else 1
    for some_batch in spans(batch, batch_per_block):
        for some_heads in spans(key_heads, heads_per_block):
            for some in spans(queries, step):
                first = max(0, some.start + keys - queries - farthest)
                last = min(keys, some.stop + keys - queries - nearest)
                if first < last:
                    yield Block(some_batch, some_heads, some, slice(first, last))


def row_table(block: Block, tensors: Tensors) -> Tensor:
    """Maps row r of a block to its number among all rows: see `row_number` in `kernels`."""
    (_, heads, queries, _), key_heads = tensors.q.shape, tensors.k.shape[1]
    group, in_block = heads // key_heads, block.key_heads.stop - block.key_heads.start
    first_head = block.batch.start * heads + block.key_heads.start * group
    length = block.queries.stop - block.queries.start
    return torch.tensor([length, block.queries.start, first_head, in_block * group, heads, queries, group])


def rows_of(block: Block, tensors: Tensors) -> int:
    return math.prod(some.stop - some.start for some in (block.batch, block.heads(tensors), block.queries))


def params_of(block: Block, tensors: Tensors) -> Tensor:
    """(1, P) if all rows share them, else (rows, P)."""
    params, count = tensors.params, tensors.params.shape[-1]
    if params.numel() == count:
        return params.reshape(1, count).contiguous()
    full = params.expand(*tensors.q.shape[:3], count)
    return full[block.batch, block.heads(tensors), block.queries].reshape(-1, count).contiguous()
