"""The forward pass of sparse attention: a call and its blocks, the support of each block, and its outputs."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._kernels.packing import pack, products_pay
from ..._kernels.switch import load
from ..._kernels.threads import over_rows
from ...normalizers import find_support
from ..engine import spans, visible_distances

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


class Scratch:
    """Memory that all blocks share: scores, which become weights, and the places of these.

    A thread keeps that of its last call: new memory costs as much as the writes to it.
    """

    _last = threading.local()

    def __init__(self, tensors: Tensors, of_blocks: Sequence[Block], packed: Tensor | None = None) -> None:
        size = max((rows_of(block, tensors) * width_of(block, tensors) for block in of_blocks), default=0)
        last: tuple[Tensor, Tensor] | None = getattr(self._last, "tensors", None)
        if last is None or last[0].numel() < size:
            with torch.inference_mode(False):  # inference tensors could not be written to outside of that mode
                last = torch.empty(size, dtype=torch.float32), torch.empty(size, dtype=torch.int32)
            if 4 * size <= PACKED_BLOCK + SCORE_BYTES:  # a sink adds a column
                self._last.tensors = last
        self.scores, self.places = last
        self.packed = packed

    def of(self, rows: int, width: int) -> tuple[Tensor, Tensor]:
        return self.scores[: rows * width].view(rows, width), self.places[: rows * width].view(rows, width)


def width_of(block: Block, tensors: Tensors) -> Any:
    """Columns of scores: the keys, and the sink."""
    return block.keys.stop - block.keys.start + (0 if tensors.sink is None else 1)


def attend(settings: Settings, seed: int, tensors: Tensors, limit: int) -> tuple[Tensor, list[Support]]:
    """Output, and the supports of the first blocks, up to `limit` bytes: backward recomputes the others."""
    q, v = tensors.q, tensors.v
    # A query that sees no key belongs to no block.
    out = q.new_zeros(*q.shape[:3], v.shape[3])
    of_blocks = list(blocks(settings, tensors))
    scratch, kept, used = Scratch(tensors, of_blocks, packed_keys(settings, tensors)), [], 0
    for block in of_blocks:
        support, size = attend_block(settings, seed, tensors, block, scratch, out, used < limit)
        if support is not None:
            kept.append(support)
        used += size
    return out, kept


def attend_block(
    settings: Settings, seed: int, tensors: Tensors, block: Block, scratch: Scratch, out: Tensor, keep: bool
) -> tuple[Support | None, int]:
    """Write the output of a block; returns its support if `keep`, and the bytes it takes."""
    weights, places, counts, starts, sink_weights = support_of(settings, tensors, block, scratch)
    v, ends = tensors.v, counts.cumsum(0)
    total = int(ends[-1]) if keep else 0
    kept_places, kept_weights = torch.empty(total, dtype=torch.int32), v.new_empty(total)
    over_rows(
        kernel("sum_values"), len(counts), weights, places, counts, starts, row_table(block, tensors), v.flatten(0, 1),
        chances(settings, seed), ends - counts, kept_places, kept_weights, out.view(-1, out.shape[3]),
    )  # fmt: skip
    support = Support(block, counts, kept_places, kept_weights, sink_weights) if keep else None
    return support, 8 * (total + len(counts))


def support_of(
    settings: Settings, tensors: Tensors, block: Block, scratch: Scratch
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Weights and places, the count and the start of each row's, and the weights of the sink."""
    rows, keys = rows_of(block, tensors), block.keys.stop - block.keys.start
    scores, places = scratch.of(rows, width_of(block, tensors))
    query, packed = tensors.q.new_empty(0, 1), tensors.q.new_empty(0, 1)
    if scratch.packed is None:
        make_logits(settings, tensors, block, scores[:, :keys])
    else:
        query = (tensors.q[block.batch, block.heads(tensors), block.queries] * settings.scale).flatten(0, 2)
        packed = scratch.packed[block.batch, block.key_heads].flatten(0, 1)
    nearest, farthest = visible_distances(settings.causal, settings.window, tensors.q, tensors.k)
    queries = block.queries.stop - block.queries.start
    position = block.queries.start + tensors.k.shape[2] - tensors.q.shape[2] - block.keys.start
    shape = torch.tensor([queries, position, nearest, farthest, keys, block.keys.start])
    counts, starts = torch.empty(2, rows, dtype=torch.int64)
    sink, sink_weights = tensors.q.new_empty(0), tensors.q.new_empty(0)
    if tensors.sink is not None:
        sink = tensors.sink[block.heads(tensors)].repeat(block.batch.stop - block.batch.start)
        sink_weights = tensors.q.new_empty(rows)
    params = params_of(block, tensors)
    find_support(settings.name, scores, params, sink, shape, places, counts, starts, sink_weights, query, packed)
    return scores.view(-1), places.view(-1), counts, starts, sink_weights


def packed_keys(settings: Settings, tensors: Tensors) -> Tensor | None:
    """The keys as kernels multiply them, or None if torch computes the scores."""
    if not packs(settings, tensors):
        return None
    return pack(tensors.k.flatten(0, 1)).view(*tensors.k.shape[:2], -1)


def make_logits(settings: Settings, tensors: Tensors, block: Block, out: Tensor) -> None:
    """Scores of a block, capped, biased and masked; causal and window are left to the kernel."""
    heads, keys = block.heads(tensors), out.shape[-1]
    q = tensors.q[block.batch, heads, block.queries] * settings.scale
    k = tensors.k[block.batch, block.key_heads, block.keys].flatten(0, 1)
    scores = out.view(len(k), -1, keys)
    torch.bmm(q.view(len(k), -1, q.shape[-1]), k.mT, out=scores)
    if settings.softcap is not None:
        scores.div_(settings.softcap).tanh_().mul_(settings.softcap)
    if tensors.bias is None and tensors.mask is None:
        return
    logits = out.view(*q.shape[:3], keys)
    if tensors.bias is not None:
        logits.add_(part_of(tensors.bias, block, heads))
    if tensors.mask is not None:
        logits.masked_fill_(~part_of(tensors.mask, block, heads), -math.inf)


def part_of(table: Tensor, block: Block, heads: slice) -> Tensor:
    """The part of a mask or bias that belongs to a block."""
    wanted = (block.batch, heads, block.queries, block.keys)
    return table[tuple(slice(None) if n == 1 else some for n, some in zip(table.shape, wanted, strict=True))]


def chances(settings: Settings, seed: int) -> Tensor:
    """For dropout: its seed in two parts, each exact as a float64, and the probability of keeping a weight."""
    return torch.tensor([float(seed >> 31), float(seed & (2**31 - 1)), 1 - settings.dropout], dtype=torch.float64)


@cache
def kernel(name: str) -> Any:
    return load(f"{__package__}.kernels", name)
