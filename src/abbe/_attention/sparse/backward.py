"""Backward: every gradient is a sum over the support, so there is no matrix product, and nothing of size Lq x Lk.

Supports are collected until they have enough entries, then transposed, so that each key sums over its own queries: no
two threads write to the same place, and the order of a sum does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from ..._kernels.threads import over_rows
from ...normalizers import differentiate_support
from .forward import (
    Block,
    Scratch,
    Settings,
    Support,
    Tensors,
    blocks,
    chances,
    kernel,
    packed_keys,
    params_of,
    row_table,
    support_of,
)

ENTRIES = 1 << 20  # of the supports that are collected: 20 MiB


def gradients(
    settings: Settings, seed: int, grad_out: Tensor, tensors: Tensors, kept: Sequence[Support], needed: Sequence[bool]
) -> Tensors:
    """Gradients to q, k, v, sink and params; those that are not needed are None or arbitrary."""
    q, k, v = tensors.q, tensors.k, tensors.v
    wanted = Tensors(*needed)  # type: ignore[arg-type]
    grads = Tensors(
        torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v), None, None,
        None if tensors.sink is None else torch.zeros_like(tensors.sink), torch.zeros_like(tensors.params),
    )  # fmt: skip
    waiting: list[Support] = []
    entries = 0
    for support in _all_supports(settings, tensors, kept):
        waiting.append(support)
        entries += len(support.places)
        if entries >= ENTRIES:
            _add_gradients(settings, seed, grad_out, tensors, waiting, grads, wanted)
            waiting, entries = [], 0
    if waiting:
        _add_gradients(settings, seed, grad_out, tensors, waiting, grads, wanted)
    return grads


def _all_supports(settings: Settings, tensors: Tensors, kept: Sequence[Support]) -> Iterator[Support]:
    yield from kept
    others = list(islice(blocks(settings, tensors), len(kept), None))
    scratch = Scratch(tensors, others, packed_keys(settings, tensors) if others else None)
    for block in others:
        yield _recomputed(settings, tensors, block, scratch)


def _recomputed(settings: Settings, tensors: Tensors, block: Block, scratch: Scratch) -> Support:
    weights, places, counts, starts, sink_weights = support_of(settings, tensors, block, scratch)
    ends = counts.cumsum(0)
    some = torch.repeat_interleave(starts - ends + counts, counts) + torch.arange(int(ends[-1]))
    return Support(block, counts, places[some], weights[some], sink_weights)


def _add_gradients(
    settings: Settings, seed: int, grad_out: Tensor, tensors: Tensors, supports: Sequence[Support], grads: Tensors,
    wanted: Tensors,
) -> None:  # fmt: skip
    q, k, v = (t.flatten(0, 1) for t in tensors[:3])
    group = tensors.q.shape[1] // tensors.k.shape[1]
    shape = torch.tensor([group * q.shape[1], k.shape[1]])
    rows = _row_numbers(tensors, supports)
    counts = torch.cat([one.counts for one in supports])
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    places, weights = torch.cat([one.places for one in supports]), torch.cat([one.weights for one in supports])
    sink_weights = torch.cat([one.sink_weights for one in supports])
    grad = grad_out.view(-1, v.shape[2])
    left = weights.clone() if settings.dropout else weights
    of_logits = torch.empty_like(weights)
    lottery = chances(settings, seed)
    over_rows(kernel("multiply_values"), len(rows), places, starts, rows, grad, v, shape, lottery, left, of_logits)
    _differentiate(settings, tensors, supports, of_logits, weights, starts, sink_weights, grads, wanted)
    scale = torch.tensor([settings.scale, settings.softcap or 0.0])
    if settings.softcap is not None:
        over_rows(kernel("uncap"), len(rows), of_logits, places, starts, rows, q.flatten(0, 1), k, shape, scale)
    if wanted.q:
        of_q = grads.q.view(-1, q.shape[2])
        over_rows(kernel("sum_keys"), len(rows), of_logits, places, starts, rows, k, shape, scale, of_q)
    if not (wanted.k or wanted.v):
        return
    table = _row_spans(tensors, supports)
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
    settings: Settings, tensors: Tensors, supports: Sequence[Support], grad: Tensor, weights: Tensor, starts: Tensor,
    sink_weights: Tensor, grads: Tensors, wanted: Tensors,
) -> None:  # fmt: skip
    """Turn the gradient to the weights into that to the logits; add the gradients to sink and parameters."""
    together = params_of(supports[0].block, tensors)
    if len(together) > 1:
        together = torch.cat([params_of(one.block, tensors) for one in supports])
    rows = len(starts) - 1
    grad_sink = torch.empty_like(sink_weights)
    grad_params = together.new_zeros(rows if wanted.params else 0, together.shape[1])
    differentiate_support(settings.name, grad, weights, starts, together, sink_weights, grad_sink, grad_params)
    at = 0
    for one in supports if grads.sink is not None or wanted.params else ():
        some = slice(at, at + len(one.counts))
        at = some.stop
        heads = one.block.heads(tensors)
        shape = (one.block.batch.stop - one.block.batch.start, heads.stop - heads.start, -1)
        if grads.sink is not None:
            grads.sink[heads] += grad_sink[some].view(shape).sum((0, 2))
        if wanted.params:
            full = grads.params.new_zeros(*tensors.q.shape[:3], together.shape[1])
            full[one.block.batch, heads, one.block.queries] = grad_params[some].view(*shape, together.shape[1])
            grads.params.add_(full.sum_to_size(grads.params.shape))


def _row_numbers(tensors: Tensors, supports: Sequence[Support]) -> Tensor:
    ends = torch.tensor([len(one.counts) for one in supports]).cumsum(0)
    tables = torch.stack([row_table(one.block, tensors) for one in supports])
    rows = torch.empty(int(ends[-1]), dtype=torch.int64)
    over_rows(kernel("number_rows"), len(supports), rows, tables, ends)
    return rows


def _row_spans(tensors: Tensors, supports: Sequence[Support]) -> Tensor:
    """(key heads of the batch, supports, 2): which rows of each support belong to a key head; (0, 0) if none."""
    batch, key_heads = tensors.k.shape[:2]
    table = torch.zeros(batch, key_heads, len(supports), 2, dtype=torch.int64)
    at = 0
    for i, (block, counts, *_) in enumerate(supports):
        part = table[block.batch, block.key_heads, i]
        rows = len(counts) // (part.shape[0] * part.shape[1])
        begin = at + rows * torch.arange(part.shape[0] * part.shape[1]).view(part.shape[:2])
        part[..., 0], part[..., 1] = begin, begin + rows
        at += len(counts)
    return table.flatten(0, 1)
