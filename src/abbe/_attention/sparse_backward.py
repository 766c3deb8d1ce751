"""Backward: every gradient is a sum over the support, so there is no matrix product, and nothing of size Lq x Lk.

Supports are collected until they have enough entries, then transposed, so that each key sums over its own queries: no
two threads write to the same place, and the order of a sum does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .._kernels.threads import over_rows
from ..normalizers import differentiate_support
from .engine import Block, Inputs, Rule
from .sparse_forward import (
    Scratch,
    Support,
    chances,
    kernel,
    packed_keys,
    params_of,
    row_table,
    support_blocks,
    support_of,
)

ENTRIES = 1 << 20  # of the supports that are collected: 20 MiB


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
