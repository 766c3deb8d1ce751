"""The engine of attention: scores -> weights -> output, densely or block by block.

What is special: memory is O(block x Lk) forward and backward, for every normalizer. The blockwise path keeps
no weights; its backward computes them again for each block, writes the gradients of the matrix products by
hand, and lets autograd see only the small graph scores -> weights. Grouped-query heads are folded into the
query axis, so that one kv head meets all its query heads in one product and is never repeated.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from abbe._errors import AbbeError
from abbe.normalizers import Normalizer

BLOCK_BYTES = 8 * 2**20  # of scores
MIN_QUERIES = 64  # with fewer queries to a block, reading k and v would cost more than the scores

EVERY = slice(None)


class Rule(NamedTuple):
    """How scores become weights."""

    normalizer: Normalizer
    scale: float
    softcap: float | None = None
    causal: bool = False
    window: int | None = None
    dropout: float = 0.0


class Inputs(NamedTuple):
    """The tensors of one call, or of one block, or their gradients."""

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
    """Some batch elements and queries of a call, and the keys that these queries can see; always all heads."""

    number: int
    batch: tuple[slice, ...]
    queries: slice
    keys: slice


class Call(NamedTuple):
    """What the backward pass must know, besides tensors, to repeat the forward pass."""

    rule: Rule
    size: BlockSize
    seed: int  # of the dropout


def dense(rule: Rule, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Output and weights in ordinary torch operations: any transform works, memory is O(Lq x Lk)."""
    batch, dtype = batch_shape(inputs), compute_dtype(inputs.q)
    q, k, v = (t.expand(*batch, *t.shape[-3:]).to(dtype) for t in inputs[:3])
    everything = Block(0, (), slice(0, q.shape[-2]), slice(0, k.shape[-2]))
    with full_precision(q):
        visible = block_mask(rule, inputs, everything, inputs.mask)
        weights = weigh(rule, grouped_scores(q * rule.scale, k), visible, inputs.bias, inputs.sink)
        kept = F.dropout(weights, rule.dropout) if rule.dropout else weights
        out = unfold_heads(fold_heads(kept, k.shape[-3]) @ v, q.shape[-3])
    return out.to(inputs.v.dtype), weights.to(inputs.v.dtype)


def blockwise(rule: Rule, inputs: Inputs, size: BlockSize | None = None) -> Tensor:
    """Output in O(block x Lk) memory; the size of a block is chosen unless it is given."""
    batch = batch_shape(inputs)
    q = inputs.q.expand(*batch, *inputs.q.shape[-3:])
    aligned = (None if t is None else t[(None,) * (q.dim() - t.dim())] for t in inputs[1:5])
    seed = int(torch.randint(2**62, ())) if rule.dropout else 0
    call = Call(rule, size or best_block_size(rule, inputs), seed)
    parameters = rule.normalizer.parameters()
    out: Tensor = _Blockwise.apply(call, q, *aligned, inputs.sink, *parameters)  # type: ignore[no-untyped-call]
    return out


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Any) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(*tensors)
        return _output(call, Inputs(*tensors[:6]), tensors[6:])

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        needed = ctx.needs_input_grad[1:]
        return None, *_Gradient.apply(ctx.call, needed, grad_out, *ctx.saved_tensors)  # type: ignore[no-untyped-call]


class _Gradient(torch.autograd.Function):
    """The gradient of _Blockwise: a function of its own, so that deriving it again can say what is wrong."""

    @staticmethod
    def forward(ctx: Any, call: Call, needed: Sequence[bool], grad_out: Tensor, *tensors: Any) -> Any:
        totals = _gradients(call, needed, grad_out, Inputs(*tensors[:6]), tensors[6:])
        return tuple(None if not n or g is None else g.to(t.dtype) for g, t, n in zip(totals, tensors, needed))

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise AbbeError(
            f"attention has second derivatives only if its scores fit in one block of {BLOCK_BYTES >> 20} MiB, "
            "inside torch.func transforms, or with return_weights=True"
        )


def _output(call: Call, inputs: Inputs, parameters: Sequence[Tensor]) -> Tensor:
    rule, heads, kv_heads = call.rule, inputs.q.shape[-3], inputs.k.shape[-3]
    out = inputs.v.new_zeros(*inputs.q.shape[:-1], inputs.v.shape[-1])
    inputs = in_compute_dtype(inputs)
    with full_precision(out):
        for block in blocks(call, inputs):
            part = part_of(inputs, block)
            scores, visible = grouped_scores(part.q * rule.scale, part.k), block_mask(rule, inputs, block, part.mask)
            weights = weigh(rule, scores, visible, part.bias, part.sink, parameters)
            kept = weights * dropout_factors(call, block, weights) if rule.dropout else weights
            values = unfold_heads(fold_heads(kept, kv_heads) @ part.v, heads)
            out[(*block.batch, EVERY, block.queries)] = values.to(out.dtype)
    return out


def _gradients(
    call: Call, needed: Sequence[bool], grad_out: Tensor, inputs: Inputs, parameters: Sequence[Tensor]
) -> list[Tensor | None]:
    """Sums over all blocks: one for each of q, k, v, mask, bias, sink and the normalizer's parameters."""
    inputs = in_compute_dtype(inputs)
    needed = [True, True, True, *needed[3:]]
    totals = [zeros_for(t, inputs.q.dtype) if n else None for t, n in zip((*inputs, *parameters), needed)]
    parameters = [leaf(t, n) for t, n in zip(parameters, needed[6:])]
    with full_precision(grad_out):
        for block in blocks(call, inputs):
            part, total = part_of(inputs, block), part_of(Inputs(*totals[:6]), block)  # type: ignore[arg-type]
            part = part._replace(
                mask=block_mask(call.rule, inputs, block, part.mask),
                bias=None if part.bias is None else leaf(part.bias, needed[4]),
                sink=None if part.sink is None else leaf(part.sink, needed[5]),
            )
            outer = grad_out[(*block.batch, EVERY, block.queries)].to(part.q.dtype)
            _add_block(call, block, part, parameters, outer, total, totals[6:])
    return totals


def _add_block(
    call: Call,
    block: Block,
    part: Inputs,
    parameters: Sequence[Tensor],
    outer: Tensor,  # gradient of the block's output
    total: Inputs,
    parameter_totals: Sequence[Tensor | None],
) -> None:
    rule, heads, kv_heads = call.rule, part.q.shape[-3], part.k.shape[-3]
    q = part.q * rule.scale
    scores = leaf(grouped_scores(q, part.k))
    with torch.enable_grad():
        weights = weigh(rule, scores, part.mask, part.bias, part.sink, parameters)
    outer = fold_heads(outer, kv_heads)
    kept, weights_grad = weights.detach(), unfold_heads(outer @ part.v.mT, heads)
    if rule.dropout:
        factors = dropout_factors(call, block, weights)
        kept, weights_grad = kept * factors, weights_grad * factors
    add_to(total.v, fold_heads(kept, kv_heads).mT @ outer)
    learned = [t for t in (part.bias, part.sink, *parameters) if t is not None and t.requires_grad]
    scores_grad, *learned_grads = torch.autograd.grad(weights, [scores, *learned], weights_grad, allow_unused=True)
    scores_grad = fold_heads(scores_grad, kv_heads)
    add_to(total.q, unfold_heads(scores_grad @ part.k, heads) * rule.scale)
    add_to(total.k, scores_grad.mT @ fold_heads(q, kv_heads))
    sums = [t for t in (total.bias, total.sink, *parameter_totals) if t is not None]
    for sum_so_far, grad in zip(sums, learned_grads, strict=True):
        add_to(sum_so_far, grad)


def weigh(
    rule: Rule,
    scores: Tensor,
    visible: Tensor | None,
    bias: Tensor | None,
    sink: Tensor | None,
    parameters: Sequence[Tensor] = (),
) -> Tensor:
    """Weights of scores (..., H, Lq, Lk); parameters, where given, stand in for those of the normalizer."""
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if sink is None:
        return normalize(rule.normalizer, scores, visible, parameters)
    if visible is not None:
        visible = F.pad(visible.expand(*visible.shape[:-1], scores.shape[-1]), (1, 0), value=True)
    first = sink.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    return normalize(rule.normalizer, torch.cat([first, scores], -1), visible, parameters)[..., 1:]


def normalize(
    normalizer: Normalizer, logits: Tensor, visible: Tensor | None, parameters: Sequence[Tensor]
) -> Tensor:
    if not parameters:
        weights: Tensor = normalizer(logits, mask=visible)
        return weights
    # By the time of backward the module may hold others: torch.func.functional_call lends them for a forward only.
    names = (name for name, _ in normalizer.named_parameters())
    weights = torch.func.functional_call(normalizer, dict(zip(names, parameters)), (logits,), {"mask": visible})
    return weights


def grouped_scores(q: Tensor, k: Tensor) -> Tensor:
    """(..., H, Lq, D) x (..., Hkv, Lk, D) -> (..., H, Lq, Lk)."""
    return unfold_heads(fold_heads(q, k.shape[-3]) @ k.mT, q.shape[-3])


def fold_heads(t: Tensor, kv_heads: int) -> Tensor:
    """(..., H, Lq, X) -> (..., Hkv, H/Hkv * Lq, X)."""
    heads, queries, width = t.shape[-3:]
    return t.reshape(*t.shape[:-3], kv_heads, heads // kv_heads * queries, width)


def unfold_heads(t: Tensor, heads: int) -> Tensor:
    """(..., Hkv, H/Hkv * Lq, X) -> (..., H, Lq, X)."""
    kv_heads, rows, width = t.shape[-3:]
    return t.reshape(*t.shape[:-3], heads, kv_heads * rows // heads, width)


def block_mask(rule: Rule, inputs: Inputs, block: Block, mask: Tensor | None) -> Tensor | None:
    """What causal, window and the block's part of the mask leave visible; None if nothing is hidden."""
    queries, keys = block.queries, block.keys
    nearest, farthest = visible_distances(rule, inputs)
    offset = inputs.k.shape[-2] - inputs.q.shape[-2]
    least, most = queries.start + offset - (keys.stop - 1), queries.stop - 1 + offset - keys.start
    if nearest <= least and most <= farthest:
        return mask
    device = inputs.q.device
    positions = torch.arange(queries.start, queries.stop, device=device)[:, None] + offset
    distance = positions - torch.arange(keys.start, keys.stop, device=device)
    visible = (nearest <= distance) & (distance <= farthest)
    return visible if mask is None else visible & mask


def visible_distances(rule: Rule, inputs: Inputs) -> tuple[int, int]:
    """Least and greatest (query position - key position) that causal and window allow."""
    unlimited = inputs.q.shape[-2] + inputs.k.shape[-2]
    reach = unlimited if rule.window is None else rule.window - 1
    return 0 if rule.causal else -reach, reach


def blocks(call: Call, inputs: Inputs) -> Iterator[Block]:
    """All blocks in which some query can see some key."""
    queries, keys = inputs.q.shape[-2], inputs.k.shape[-2]
    nearest, farthest = visible_distances(call.rule, inputs)
    room, chunks = call.size.batch, []
    for length in reversed(inputs.q.shape[:-3]):
        step = max(1, min(length, room))
        room //= step
        chunks.append([slice(start, start + step) for start in range(0, length, step)])
    spans = [slice(start, min(start + call.size.queries, queries)) for start in range(0, queries, call.size.queries)]
    for number, (*batch, span) in enumerate(product(*reversed(chunks), spans)):
        first = max(0, span.start + keys - queries - farthest)
        last = min(keys, span.stop + keys - queries - nearest)
        if first < last:
            yield Block(number, tuple(batch), span, slice(first, last))


def best_block_size(rule: Rule, inputs: Inputs) -> BlockSize:
    heads, queries = inputs.q.shape[-3:-1]
    keys = inputs.k.shape[-2]
    scores = BLOCK_BYTES // (heads * compute_dtype(inputs.q).itemsize)
    # r queries see at most r + reach keys; the greatest r with r * min(keys, r + reach) <= scores
    nearest, farthest = visible_distances(rule, inputs)
    reach = farthest - nearest
    rows = max(scores // keys, (math.isqrt(reach * reach + 4 * scores) - reach) // 2, MIN_QUERIES)
    return BlockSize(max(1, scores // (queries * keys)), min(rows, queries))


def fits_in_one_block(inputs: Inputs) -> bool:
    scores = math.prod(batch_shape(inputs)) * math.prod(inputs.q.shape[-3:-1]) * inputs.k.shape[-2]
    return scores * compute_dtype(inputs.q).itemsize <= BLOCK_BYTES


def part_of(inputs: Inputs, block: Block) -> Inputs:
    def take(t: Tensor | None, *last: slice) -> Any:
        index = (*block.batch, EVERY, *last)
        return None if t is None else t[tuple(EVERY if n == 1 else s for n, s in zip(t.shape, index))]

    q, k, v, mask, bias, sink = inputs
    pair = block.queries, block.keys
    return Inputs(take(q, pair[0]), take(k, pair[1]), take(v, pair[1]), take(mask, *pair), take(bias, *pair), sink)


def dropout_factors(call: Call, block: Block, weights: Tensor) -> Tensor:
    """0 or 1 / (1 - dropout); the same in forward and backward."""
    generator = torch.Generator(weights.device).manual_seed(call.seed + block.number)
    keep = 1 - call.rule.dropout
    return torch.empty_like(weights, requires_grad=False).bernoulli_(keep, generator=generator).div_(keep)


def batch_shape(inputs: Inputs) -> torch.Size:
    return torch.Size(torch.broadcast_shapes(*(t.shape[:-3] for t in inputs[:3])))  # type: ignore[no-untyped-call]


def compute_dtype(t: Tensor) -> torch.dtype:
    return torch.float32 if t.dtype in (torch.float16, torch.bfloat16) else t.dtype


def in_compute_dtype(inputs: Inputs) -> Inputs:
    """Also contiguous, since a matrix product would else copy k and v anew in every block."""
    dtype = compute_dtype(inputs.q)
    q, k, v = (t.to(dtype).contiguous() for t in inputs[:3])
    return inputs._replace(q=q, k=k, v=v)


def full_precision(t: Tensor) -> AbstractContextManager[Any]:
    """Without autocast, which would round scores to half precision, and in forward only."""
    kind = t.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def leaf(t: Tensor, learned: bool = True) -> Tensor:
    return t.detach().requires_grad_(learned)


def zeros_for(t: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(t.shape, dtype=torch.promote_types(t.dtype, dtype), device=t.device)


def add_to(total: Tensor, grad: Tensor | None) -> None:
    if grad is not None:
        total += grad.sum_to_size(total.shape)
