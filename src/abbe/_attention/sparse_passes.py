"""Both passes of sparse attention over the supports of a call's blocks.

`Inputs` are contiguous float32 tensors with one batch dim, on the CPU; mask and bias are (B or 1, H or 1, Lq or 1,
Lk or 1). The `Rule` has the name of a map in place of a normalizer.

Backward: every gradient is a sum over the support, so there is no matrix product, and nothing of size Lq x Lk. Supports
are collected until they have enough entries, then transposed, so that each key sums over its own queries: no two
threads write to the same place, and the order of a sum does not depend on the number of threads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._kernels.calls import load, over_rows, pack, products_pay
from ..normalizers import differentiate_support, find_support
from .engine import Block, BlockSize, Inputs, Rule, blocks, part_of, visible_distances

# Of scores. A block should stay in the caches of two cores, and have enough queries for an efficient matrix product.
SCORE_BYTES = 4 * 2**20
MIN_QUERIES, MAX_QUERIES = 64, 128
# If the kernel computes the scores, only the support of a block is written to its memory: blocks may be larger, so that
# there are few.
PACKED_BLOCK, PACKED_QUERIES = 3 * SCORE_BYTES, 512
PACKED_FROM = 32  # queries: for fewer, packing the keys costs more than it saves
ENTRIES = 1 << 20  # of the supports that are collected: 20 MiB


class Support(NamedTuple):
    """The support of a block's rows, which are ordered by batch element, head and query."""

    block: Block
    counts: Tensor  # (rows,)
    places: Tensor  # (n,) int32, keys
    weights: Tensor  # (n,)
    sink_weights: Tensor  # (rows,), or (0,) without a sink


def packs(rule: Rule[str], inputs: Inputs) -> bool:
    """Whether kernels compute the scores: these need no cap, bias or mask, and there are many queries."""
    modified = rule.softcap is not None or inputs.bias is not None or inputs.mask is not None
    return not modified and inputs.q.shape[2] >= PACKED_FROM and products_pay()


def support_blocks(rule: Rule[str], inputs: Inputs) -> list[Block]:
    """All blocks, of a size that suits the kernels."""
    batch, heads, queries, _ = inputs.q.shape
    key_heads, keys = inputs.k.shape[1:3]
    nearest, farthest = visible_distances(rule, inputs)
    size, most = (PACKED_BLOCK, PACKED_QUERIES) if packs(rule, inputs) else (SCORE_BYTES, MAX_QUERIES)
    in_block = max(1, size // 4 // min(keys, farthest - nearest + most))  # rows of scores
    step = min(max(in_block // (heads * batch), MIN_QUERIES), most, queries)
    heads_per_block = max(1, min(key_heads, in_block // (step * heads // key_heads)))
    batch_per_block = max(1, in_block // (step * heads)) if heads_per_block == key_heads else 1
    return list(blocks(rule, inputs, BlockSize(batch_per_block, step, heads_per_block)))


def row_table(block: Block, inputs: Inputs) -> Tensor:
    """Maps row r of a block to its number among all rows: see `row_number` in `sparse_kernels`."""
    (_, heads, queries, _), key_heads = inputs.q.shape, inputs.k.shape[1]
    first_head = block.batch[0].start * heads + block.heads.start
    _, in_block, length = block.shape
    return torch.tensor([length, block.queries.start, first_head, in_block, heads, queries, heads // key_heads])


def params_of(block: Block, inputs: Inputs) -> Tensor:
    """(1, P) if all rows share them, else (rows, P)."""
    params: Tensor = inputs.params
    count = params.shape[-1]
    if params.numel() == count:
        return params.reshape(1, count).contiguous()
    return params.expand(*inputs.q.shape[:3], count)[block.rows].reshape(-1, count).contiguous()


class Scratch:
    """Memory that all blocks share: scores, which become weights, and the places of these.

    A thread keeps that of its last call: new memory costs as much as the writes to it.
    """

    _last = threading.local()

    def __init__(self, inputs: Inputs, of_blocks: Sequence[Block], packed: Tensor | None = None) -> None:
        size = max((math.prod(block.shape) * width_of(block, inputs) for block in of_blocks), default=0)
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


def width_of(block: Block, inputs: Inputs) -> Any:
    """Columns of scores: the keys, and the sink."""
    return block.keys.stop - block.keys.start + (0 if inputs.sink is None else 1)


def attend(rule: Rule[str], inputs: Inputs, limit: int) -> tuple[Tensor, list[Support]]:
    """Output, and the supports of the first blocks, up to `limit` bytes: backward recomputes the others."""
    # A query that sees no key belongs to no block.
    out = inputs.q.new_zeros(*inputs.q.shape[:3], inputs.v.shape[3])
    of_blocks = support_blocks(rule, inputs)
    scratch, kept, used = Scratch(inputs, of_blocks, packed_keys(rule, inputs)), [], 0
    for block in of_blocks:
        support, size = attend_block(rule, inputs, block, scratch, out, used < limit)
        if support is not None:
            kept.append(support)
        used += size
    return out, kept


def attend_block(
    rule: Rule[str], inputs: Inputs, block: Block, scratch: Scratch, out: Tensor, keep: bool
) -> tuple[Support | None, int]:
    """Write the output of a block; returns its support if `keep`, and the bytes it takes."""
    weights, places, counts, starts, sink_weights = support_of(rule, inputs, block, scratch)
    v, ends = inputs.v, counts.cumsum(0)
    total = int(ends[-1]) if keep else 0
    kept_places, kept_weights = torch.empty(total, dtype=torch.int32), v.new_empty(total)
    over_rows(
        kernel("sum_values"), len(counts), weights, places, counts, starts, row_table(block, inputs), v.flatten(0, 1),
        chances(rule), ends - counts, kept_places, kept_weights, out.view(-1, out.shape[3]),
    )  # fmt: skip
    support = Support(block, counts, kept_places, kept_weights, sink_weights) if keep else None
    return support, 8 * (total + len(counts))


def support_of(
    rule: Rule[str], inputs: Inputs, block: Block, scratch: Scratch
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Weights and places, the count and the start of each row's, and the weights of the sink."""
    q, rows, keys = inputs.q, math.prod(block.shape), block.keys.stop - block.keys.start
    scores, places = scratch.of(rows, width_of(block, inputs))
    query, packed = q.new_empty(0, 1), q.new_empty(0, 1)
    if scratch.packed is None:
        make_logits(rule, part_of(inputs, block), scores[:, :keys])
    else:
        query = (q[block.rows] * rule.scale).flatten(0, 2)
        packed = scratch.packed[(*block.batch, block.key_heads)].flatten(0, 1)
    nearest, farthest = visible_distances(rule, inputs)
    position = block.queries.start + inputs.k.shape[2] - q.shape[2] - block.keys.start
    shape = torch.tensor([block.shape[-1], position, nearest, farthest, keys, block.keys.start])
    counts, starts = torch.empty(2, rows, dtype=torch.int64)
    sink, sink_weights = q.new_empty(0), q.new_empty(0)
    if inputs.sink is not None:
        sink, sink_weights = inputs.sink[block.heads].repeat(block.shape[0]), q.new_empty(rows)
    params = params_of(block, inputs)
    find_support(rule.normalizer, scores, params, sink, shape, places, counts, starts, sink_weights, query, packed)
    return scores.view(-1), places.view(-1), counts, starts, sink_weights


def packed_keys(rule: Rule[str], inputs: Inputs) -> Tensor | None:
    """The keys as kernels multiply them, or None if torch computes the scores."""
    if not packs(rule, inputs):
        return None
    return pack(inputs.k.flatten(0, 1)).view(*inputs.k.shape[:2], -1)


def make_logits(rule: Rule[str], part: Inputs, out: Tensor) -> None:
    """Scores of a block, capped, biased and masked; causal and window are left to the kernel."""
    q, k = part.q * rule.scale, part.k.flatten(0, 1)
    scores = out.view(len(k), -1, out.shape[-1])
    torch.bmm(q.view(len(k), -1, q.shape[-1]), k.mT, out=scores)
    if rule.softcap is not None:
        scores.div_(rule.softcap).tanh_().mul_(rule.softcap)
    logits = out.view(*q.shape[:3], out.shape[-1])
    if part.bias is not None:
        logits.add_(part.bias)
    if part.mask is not None:
        logits.masked_fill_(~part.mask, -math.inf)


def chances(rule: Rule[str]) -> Tensor:
    """What dropout needs: its seed in two parts, each exact as a float64, and the probability of keeping a weight."""
    high, low = rule.seed >> 31, rule.seed & (2**31 - 1)
    return torch.tensor([float(high), float(low), 1 - rule.dropout], dtype=torch.float64)


@cache
def kernel(name: str) -> Any:
    return load(f"{__package__}.sparse_kernels", name)


def gradients(
    rule: Rule[str], grad_out: Tensor, inputs: Inputs, kept: Sequence[Support], needed: Sequence[bool]
) -> Inputs:
    """Gradients to q, k, v, sink and params; those that are not needed are None or arbitrary."""
    wanted = Inputs(*needed)  # type: ignore[arg-type]
    grads = zeros_like(inputs)
    waiting: list[Support] = []
    entries = 0
    for support in _all_supports(rule, inputs, kept):
        waiting.append(support)
        entries += len(support.places)
        if entries >= ENTRIES:
            _add_gradients(rule, grad_out, inputs, waiting, grads, wanted)
            waiting, entries = [], 0
    if waiting:
        _add_gradients(rule, grad_out, inputs, waiting, grads, wanted)
    return grads


def zeros_like(inputs: Inputs) -> Inputs:
    """Gradients to begin with; mask and bias have none."""
    return Inputs(*(None if t is None else torch.zeros_like(t) for t in inputs))._replace(mask=None, bias=None)  # type: ignore[arg-type]


def _all_supports(rule: Rule[str], inputs: Inputs, kept: Sequence[Support]) -> Iterator[Support]:
    yield from kept
    others = support_blocks(rule, inputs)[len(kept) :]
    scratch = Scratch(inputs, others, packed_keys(rule, inputs) if others else None)
    for block in others:
        yield _recomputed(rule, inputs, block, scratch)


def _recomputed(rule: Rule[str], inputs: Inputs, block: Block, scratch: Scratch) -> Support:
    weights, places, counts, starts, sink_weights = support_of(rule, inputs, block, scratch)
    ends = counts.cumsum(0)
    some = torch.repeat_interleave(starts - ends + counts, counts) + torch.arange(int(ends[-1]))
    return Support(block, counts, places[some], weights[some], sink_weights)


def _add_gradients(
    rule: Rule[str], grad_out: Tensor, inputs: Inputs, supports: Sequence[Support], grads: Inputs, wanted: Inputs
) -> None:
    q, k, v = (t.flatten(0, 1) for t in inputs[:3])
    group = inputs.q.shape[1] // inputs.k.shape[1]
    shape = torch.tensor([group * q.shape[1], k.shape[1]])
    rows = _row_numbers(inputs, supports)
    counts, places, weights, sink_weights = map(torch.cat, list(zip(*supports, strict=True))[1:])
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    grad = grad_out.view(-1, v.shape[2])
    left = weights.clone() if rule.dropout else weights
    of_logits, drops = torch.empty_like(weights), chances(rule)
    over_rows(kernel("multiply_values"), len(rows), places, starts, rows, grad, v, shape, drops, left, of_logits)
    _differentiate(rule, inputs, supports, of_logits, weights, starts, sink_weights, grads, wanted)
    scale = torch.tensor([rule.scale, rule.softcap or 0.0])
    if rule.softcap is not None:
        over_rows(kernel("uncap"), len(rows), of_logits, places, starts, rows, q.flatten(0, 1), k, shape, scale)
    if wanted.q:
        of_q = grads.q.view(-1, q.shape[2])
        over_rows(kernel("sum_keys"), len(rows), of_logits, places, starts, rows, k, shape, scale, of_q)
    if not (wanted.k or wanted.v):
        return
    table = _row_spans(inputs, supports)
    sizes = (starts[table[..., 1]] - starts[table[..., 0]]).sum(1)
    begins, ends = sizes.cumsum(0) - sizes, torch.empty(len(table), k.shape[1], dtype=torch.int64)
    turned = torch.empty_like(places), torch.empty_like(weights), torch.empty_like(weights)
    over_rows(
        kernel("transpose"), len(table), places, starts, rows, left, of_logits, table, begins, shape, ends, *turned
    )
    over_rows(
        kernel("sum_queries"), ends.numel(), grads.k.view(-1, k.shape[2]), grads.v.view(-1, v.shape[2]),
        q.view(len(table), -1, q.shape[2]), grad.view(len(table), -1, v.shape[2]), begins, ends, *turned, scale,
    )  # fmt: skip


def _differentiate(
    rule: Rule[str], inputs: Inputs, supports: Sequence[Support], grad: Tensor, weights: Tensor, starts: Tensor,
    sink_weights: Tensor, grads: Inputs, wanted: Inputs,
) -> None:  # fmt: skip
    """Turn the gradient to the weights into that to the logits; add the gradients to sink and parameters."""
    together = params_of(supports[0].block, inputs)
    if len(together) > 1:
        together = torch.cat([params_of(support.block, inputs) for support in supports])
    rows = len(starts) - 1
    grad_sink = torch.empty_like(sink_weights)
    grad_params = together.new_zeros(rows if wanted.params else 0, together.shape[1])
    differentiate_support(rule.normalizer, grad, weights, starts, together, sink_weights, grad_sink, grad_params)
    at = 0
    for block, counts, *_ in supports if grads.sink is not None or wanted.params else ():
        own = slice(at, at + len(counts))
        at = own.stop
        if grads.sink is not None:
            grads.sink[block.heads] += grad_sink[own].view(block.shape).sum((0, 2))
        if wanted.params:
            full = grads.params.new_zeros(*inputs.q.shape[:3], together.shape[1])
            full[block.rows] = grad_params[own].view(*block.shape, together.shape[1])
            grads.params.add_(full.sum_to_size(grads.params.shape))


def _row_numbers(inputs: Inputs, supports: Sequence[Support]) -> Tensor:
    ends = torch.tensor([len(support.counts) for support in supports]).cumsum(0)
    tables = torch.stack([row_table(support.block, inputs) for support in supports])
    rows = torch.empty(int(ends[-1]), dtype=torch.int64)
    over_rows(kernel("number_rows"), len(supports), rows, tables, ends)
    return rows


def _row_spans(inputs: Inputs, supports: Sequence[Support]) -> Tensor:
    """(key heads of the batch, supports, 2): which rows of each support belong to a key head; (0, 0) if none."""
    batch, key_heads = inputs.k.shape[:2]
    table = torch.zeros(batch, key_heads, len(supports), 2, dtype=torch.int64)
    at = 0
    for i, (block, counts, *_) in enumerate(supports):
        part = table[block.batch[0], block.key_heads, i]
        rows = len(counts) // (part.shape[0] * part.shape[1])
        begin = at + rows * torch.arange(part.shape[0] * part.shape[1]).view(part.shape[:2])
        part[..., 0], part[..., 1] = begin, begin + rows
        at += len(counts)
    return table.flatten(0, 1)
