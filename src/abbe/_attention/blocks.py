"""The tensors of a call of attention, and how it is cut into blocks of queries and batch elements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..normalizers import Normalizer

# Of scores; the fastest of 1, 2, 4, 8 and 16 MiB, if a block has at least 64 queries: with fewer, reading k and v
# would cost more than the scores.
BLOCK_BYTES = 4 * 2**20
MIN_QUERIES = 64

EVERY = slice(None)
Hidden = list[tuple[slice, Tensor]]  # some keys of a block, and a table (Lq, keys), True where a key is hidden


class Rule(NamedTuple):
    """How scores become weights."""

    normalizer: Normalizer
    scale: float
    softcap: float | None = None
    causal: bool = False
    window: int | None = None
    dropout: float = 0.0


class Inputs(NamedTuple):
    """The tensors of a call or of one block, or the gradients of these."""

    q: Tensor  # (..., H, Lq, D)
    k: Tensor  # (..., Hkv, Lk, D)
    v: Tensor  # (..., Hkv, Lk, Dv)
    mask: Tensor | None = None  # bool, broadcastable to (..., H, Lq, Lk)
    bias: Tensor | None = None  # float, broadcastable to (..., H, Lq, Lk)
    sink: Tensor | None = None  # (H,)


class BlockSize(NamedTuple):
    batch: int
    queries: int


class Block(NamedTuple):
    """Some batch elements and queries of a call, and the keys that these queries can see; all heads."""

    number: int
    batch: tuple[slice, ...]
    queries: slice
    keys: slice


class Call(NamedTuple):
    """What the backward pass needs, along with the tensors, to repeat the forward pass."""

    rule: Rule
    size: BlockSize
    seed: int  # of the dropout


def score_count(inputs: Inputs) -> int:
    return math.prod(batch_shape(inputs)) * inputs.q.shape[-3] * inputs.q.shape[-2] * inputs.k.shape[-2]


def fits_in_one_block(inputs: Inputs) -> bool:
    return score_count(inputs) * compute_dtype(inputs.q).itemsize <= BLOCK_BYTES


def needs_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def hidden_edges(rule: Rule, inputs: Inputs, queries: slice, keys: slice) -> Hidden:
    """Which of these keys causal and window hide: tables for the first and the last of them, none for the middle."""
    if not rule.causal and rule.window is None:
        return []
    nearest, farthest = visible_distances(rule.causal, rule.window, inputs.q, inputs.k)
    offset = inputs.k.shape[-2] - inputs.q.shape[-2]
    # The last query sits at the last key.
    first, last = queries.start + offset, queries.stop - 1 + offset
    hidden = []
    for start, stop in (keys.start, min(keys.stop, last - farthest)), (max(keys.start, first - nearest + 1), keys.stop):
        if start < stop:
            positions = torch.arange(first, last + 1, device=inputs.q.device)[:, None]
            distance = positions - torch.arange(start, stop, device=inputs.q.device)
            table = (distance < nearest) | (distance > farthest)
            hidden.append((slice(start - keys.start, stop - keys.start), table))
    return hidden


def visible_distances(causal: bool, window: int | None, q: Tensor, k: Tensor) -> tuple[int, int]:
    """Least and greatest (query position - key position) that causal and window allow."""
    reach = q.shape[-2] + k.shape[-2] if window is None else window - 1
    return 0 if causal else -reach, reach


def blocks(call: Call, inputs: Inputs) -> Iterator[Block]:
    """All blocks in which some query can see some key."""
    queries, keys = inputs.q.shape[-2], inputs.k.shape[-2]
    nearest, farthest = visible_distances(call.rule.causal, call.rule.window, inputs.q, inputs.k)
    room, chunks = call.size.batch, [spans(queries, call.size.queries)]
    # From the innermost batch dim outwards, so that a block is contiguous in memory.
    for length in reversed(inputs.q.shape[:-3]):
        step = max(1, min(length, room))
        room //= step
        chunks.insert(0, spans(length, step))
    for number, (*batch, span) in enumerate(product(*chunks)):
        first = max(0, span.start + keys - queries - farthest)
        last = min(keys, span.stop + keys - queries - nearest)
        if first < last:
            yield Block(number, tuple(batch), span, slice(first, last))


def spans(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def best_block_size(rule: Rule, inputs: Inputs) -> BlockSize:
    heads, queries, keys = *inputs.q.shape[-3:-1], inputs.k.shape[-2]
    scores = BLOCK_BYTES // (heads * compute_dtype(inputs.q).itemsize)
    nearest, farthest = visible_distances(rule.causal, rule.window, inputs.q, inputs.k)
    reach = farthest - nearest
    # r queries see min(keys, r + reach) keys, and r times that must be at most `scores`.
    within_reach = (math.isqrt(reach * reach + 4 * scores) - reach) // 2
    return BlockSize(max(1, scores // max(1, queries * keys)), max(scores // keys, within_reach, MIN_QUERIES))


def part_of(inputs: Inputs, block: Block) -> Inputs:
    def take(t: Tensor | None, *last: slice) -> Any:
        index = (*block.batch, EVERY, *last, EVERY)
        return None if t is None else t[tuple(EVERY if n == 1 else i for n, i in zip(t.shape, index, strict=False))]

    q, k, v, mask, bias, sink = inputs
    queries, keys = block.queries, block.keys
    return Inputs(
        take(q, queries), take(k, keys), take(v, keys), take(mask, queries, keys), take(bias, queries, keys), sink
    )


def batch_shape(inputs: Inputs) -> torch.Size:
    shapes = [t.shape[:-3] for t in inputs[:3]]
    if shapes[0] == shapes[1] == shapes[2]:  # always so in a model; torch's general function is slow
        return shapes[0]
    return torch.Size(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def compute_dtype(t: Tensor) -> torch.dtype:
    return torch.float32 if t.dtype in (torch.float16, torch.bfloat16) else t.dtype


def in_compute_dtype(inputs: Inputs) -> Inputs:
    """Also contiguous: otherwise a matrix product would copy its part of k and v in every block."""
    dtype = compute_dtype(inputs.q)
    q, k, v = (t.to(dtype).contiguous() for t in inputs[:3])
    return inputs._replace(q=q, k=k, v=v)


def full_precision(t: Tensor) -> AbstractContextManager[Any]:
    """Turn off autocast, which would round scores to half precision, and only in forward."""
    kind = t.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
