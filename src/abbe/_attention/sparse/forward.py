"""Forward: the scores of a block by a matrix product, the support of its rows, the sums of their values."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..._kernels.packing import pack
from ..._kernels.switch import load
from ..._kernels.threads import over_rows
from ...normalizers import find_support
from ..blocks import visible_distances
from .call import (
    PACKED_BLOCK,
    SCORE_BYTES,
    Block,
    Settings,
    Support,
    Tensors,
    blocks,
    packs,
    params_of,
    row_table,
    rows_of,
)


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
