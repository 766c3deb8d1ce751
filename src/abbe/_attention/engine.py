"""Attention in blocks of queries, for any normalizer: a call, its logits, outputs and gradients, and absent keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._errors import AbbeError
from ..normalizers import Normalizer, inside_transform

# Of scores; the fastest of 1, 2, 4, 8 and 16 MiB, if a block has at least 64 queries: with fewer, reading k and v
# would cost more than the scores.
BLOCK_BYTES = 4 * 2**20
MIN_QUERIES = 64

EVERY = slice(None)
Hidden = list[tuple[slice, Tensor]]  # some keys of a block, and a table (Lq, keys), True where a key is hidden


How = TypeVar("How", covariant=True)


class Rule(NamedTuple, Generic[How]):
    """All of a call but its tensors: with these, what a backward pass needs to repeat the forward pass."""

    normalizer: How  # a module; sparse attention has the name of its map, which a custom operator can carry
    scale: float
    softcap: float | None = None
    causal: bool = False
    window: int | None = None
    dropout: float = 0.0
    seed: int = 0  # of the dropout


class Inputs(NamedTuple):
    """The tensors of a call or of one block, or the gradients of these."""

    q: Tensor  # (..., H, Lq, D)
    k: Tensor  # (..., Hkv, Lk, D)
    v: Tensor  # (..., Hkv, Lk, Dv)
    mask: Tensor | None = None  # bool, broadcastable to (..., H, Lq, Lk)
    bias: Tensor | None = None  # float, broadcastable to (..., H, Lq, Lk)
    sink: Tensor | None = None  # (H,)
    params: Any = None  # of the map, broadcastable to (..., H, Lq, P): a tensor in sparse attention, None elsewhere


class BlockSize(NamedTuple):
    batch: int
    queries: int
    key_heads: int | None = None  # all of them, as learned values per head need


class Block(NamedTuple):
    """Some batch elements, heads and queries of a call, and the keys that these queries can see."""

    batch: tuple[slice, ...]
    heads: slice
    key_heads: slice
    queries: slice
    keys: slice
    number: int = 0

    @property
    def rows(self) -> tuple[slice, ...]:
        """Where its queries are in a tensor (..., H, Lq, X)."""
        return *self.batch, self.heads, self.queries

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(span.stop - span.start for span in self.rows)


def score_count(inputs: Inputs) -> int:
    return math.prod(batch_shape(inputs)) * inputs.q.shape[-3] * inputs.q.shape[-2] * inputs.k.shape[-2]


def fits_in_one_block(inputs: Inputs) -> bool:
    return score_count(inputs) * compute_dtype(inputs.q).itemsize <= BLOCK_BYTES


def needs_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def hidden_edges(rule: Rule[object], inputs: Inputs, queries: slice, keys: slice) -> Hidden:
    """Which of these keys causal and window hide: tables for the first and the last of them, none for the middle."""
    if not rule.causal and rule.window is None:
        return []
    nearest, farthest = visible_distances(rule, inputs)
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


def visible_distances(rule: Rule[object], inputs: Inputs) -> tuple[int, int]:
    """Least and greatest (query position - key position) that causal and window allow."""
    reach = inputs.q.shape[-2] + inputs.k.shape[-2] if rule.window is None else rule.window - 1
    return 0 if rule.causal else -reach, reach


def blocks(rule: Rule[object], inputs: Inputs, size: BlockSize) -> Iterator[Block]:
    """All blocks in which some query can see some key; the queries of a key head come in order."""
    (heads, queries), (key_heads, keys) = inputs.q.shape[-3:-1], inputs.k.shape[-3:-1]
    group = heads // key_heads
    nearest, farthest = visible_distances(rule, inputs)
    room, chunks = size.batch, [spans(key_heads, size.key_heads or key_heads), spans(queries, size.queries)]
    # From the innermost batch dim outwards, so that a block is contiguous in memory.
    for length in reversed(inputs.q.shape[:-3]):
        step = max(1, min(length, room))
        room //= step
        chunks.insert(0, spans(length, step))
    for number, (*batch, shared, span) in enumerate(product(*chunks)):
        first = max(0, span.start + keys - queries - farthest)
        last = min(keys, span.stop + keys - queries - nearest)
        if first < last:
            own = slice(shared.start * group, shared.stop * group)
            yield Block(tuple(batch), own, shared, span, slice(first, last), number)


def spans(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def best_block_size(rule: Rule[object], inputs: Inputs) -> BlockSize:
    heads, queries, keys = *inputs.q.shape[-3:-1], inputs.k.shape[-2]
    scores = BLOCK_BYTES // (heads * compute_dtype(inputs.q).itemsize)
    nearest, farthest = visible_distances(rule, inputs)
    reach = farthest - nearest
    # r queries see min(keys, r + reach) keys, and r times that must be at most `scores`.
    within_reach = (math.isqrt(reach * reach + 4 * scores) - reach) // 2
    return BlockSize(max(1, scores // max(1, queries * keys)), max(scores // keys, within_reach, MIN_QUERIES))


def part_of(inputs: Inputs, block: Block) -> Inputs:
    """What a block reads of q, k, v, mask and bias."""

    def take(t: Tensor | None, *index: slice) -> Any:
        """A dimension of 1 is shared by all blocks."""
        return None if t is None else t[tuple(EVERY if n == 1 else i for n, i in zip(t.shape, index, strict=False))]

    of_keys, pairs = (*block.batch, block.key_heads, block.keys), (*block.rows, block.keys)
    k, v, mask, bias = take(inputs.k, *of_keys), take(inputs.v, *of_keys), *(take(t, *pairs) for t in inputs[3:5])
    return inputs._replace(q=take(inputs.q, *block.rows), k=k, v=v, mask=mask, bias=bias)


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


def grouped_scores(q: Tensor, k: Tensor) -> Tensor:
    """(..., H, Lq, D) x (..., Hkv, Lk, D) -> (..., H, Lq, Lk)."""
    return unfold_heads(fold_heads(q, k.shape[-3]) @ k.mT, q.shape[-3])


def fold_heads(t: Tensor, kv_heads: int) -> Tensor:
    """(..., H, Lq, X) -> (..., Hkv, H/Hkv * Lq, X)."""
    heads, queries, width = t.shape[-3:]
    return t if heads == kv_heads else t.reshape(*t.shape[:-3], kv_heads, heads // kv_heads * queries, width)


def unfold_heads(t: Tensor, heads: int) -> Tensor:
    """(..., Hkv, H/Hkv * Lq, X) -> (..., H, Lq, X)."""
    kv_heads, rows, width = t.shape[-3:]
    return t if heads == kv_heads else t.reshape(*t.shape[:-3], heads, kv_heads * rows // heads, width)


def soft_cap(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def logits_of(scores: Tensor, inputs: Inputs, hidden: Hidden) -> Tensor:
    """(..., H, Lq, Lk) with -inf at hidden keys; with a sink (..., H, Lq, 1 + Lk). May write into the scores."""
    if inputs.bias is not None:
        scores = scores + inputs.bias.to(scores.dtype)
    for keys, table in hidden:
        scores[..., keys].masked_fill_(table, -math.inf)
    if inputs.mask is not None:
        scores = scores.masked_fill(~inputs.mask, -math.inf)
    return scores if inputs.sink is None else with_sink(scores, inputs.sink)


def with_sink(logits: Tensor, sink: Tensor) -> Tensor:
    """(..., H, Lq, 1 + Lk): the logit of the sink per head (H,), or per query (H, Lq), before those of the keys."""
    column = sink.to(logits.dtype).reshape(len(sink), -1, 1)
    return torch.cat([column.expand(*logits.shape[:-1], 1), logits], -1)


def beside_sink(normalizer: Normalizer, logits: Tensor, sink: Tensor | None) -> Tensor:
    """The weights of the keys; a sink is one extra key, which takes its share of the weight."""
    weights: Tensor = normalizer(logits if sink is None else with_sink(logits, sink))
    return weights if sink is None else weights[..., 1:].contiguous()


def normalize(normalizer: nn.Module, logits: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """The weights, with these values of the normalizer's parameters."""
    # Backward must see the same values as forward, and a caller's functional_call replaces them in forward only.
    names = (name for name, _ in normalizer.named_parameters())
    values = dict(zip(names, parameters, strict=True))
    weights: Tensor = torch.func.functional_call(normalizer, values, logits) if values else normalizer(logits)
    return weights


def dense(rule: Rule[nn.Module], inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Output and weights in ordinary torch operations: any transform works, memory is O(Lq x Lk)."""
    batch, dtype = batch_shape(inputs), compute_dtype(inputs.q)
    q, k, v = (t if t.shape[:-3] == batch else t.expand(*batch, *t.shape[-3:]) for t in inputs[:3])
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    with full_precision(q):
        # The scale goes to q, which is smaller than the scores.
        scores = soft_cap(grouped_scores(q * rule.scale, k), rule.softcap)
        hidden = hidden_edges(rule, inputs, slice(0, q.shape[-2]), slice(0, k.shape[-2]))
        weights = rule.normalizer(logits_of(scores, inputs, hidden))
        # The sink has no value: its column is dropped.
        weights = weights if inputs.sink is None else weights[..., 1:]
        kept = F.dropout(weights, rule.dropout) if rule.dropout else weights
        out = unfold_heads(fold_heads(kept, k.shape[-3]) @ v, q.shape[-3])
    return out.to(inputs.v.dtype), weights.to(inputs.v.dtype)


def blockwise(rule: Rule[nn.Module], inputs: Inputs, size: BlockSize | None = None) -> Tensor:
    """Output in O(block x Lk) memory; by default the block size is chosen automatically."""
    batch = batch_shape(inputs)
    q = inputs.q.expand(*batch, *inputs.q.shape[-3:])
    aligned = (None if t is None else t[(None,) * (q.dim() - t.dim())] for t in inputs[1:5])
    # From torch's global generator, so that torch.manual_seed applies; without dropout it is not used.
    rule = rule._replace(seed=int(torch.randint(2**62, ())) if rule.dropout else 0)
    size, parameters = size or best_block_size(rule, inputs), rule.normalizer.parameters()
    out: Tensor = _Blockwise.apply(rule, size, q, *aligned, inputs.sink, *parameters)  # type: ignore[no-untyped-call]
    return out


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rule: Rule[nn.Module], size: BlockSize, *tensors: Any) -> Tensor:
        ctx.rule, ctx.size = rule, size
        ctx.save_for_backward(*tensors)
        return block_output(rule, size, Inputs(*tensors[:6]), tensors[6:])

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        given = ctx.rule, ctx.size, ctx.needs_input_grad[2:], grad_out, *ctx.saved_tensors
        return None, None, *_Gradients.apply(*given)  # type: ignore[no-untyped-call]


class _Gradients(torch.autograd.Function):
    """A separate function, so that its derivative can raise a clear error."""

    @staticmethod
    def forward(ctx: Any, rule: Any, size: Any, needed: Sequence[bool], grad_out: Tensor, *tensors: Any) -> Any:
        return block_gradients(rule, size, needed, grad_out, Inputs(*tensors[:6]), tensors[6:])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise AbbeError(
            f"attention has second derivatives only if its scores fit in one block of {BLOCK_BYTES >> 20} MiB, "
            "inside torch.func transforms, or with return_weights=True"
        )


def block_output(rule: Rule[nn.Module], size: BlockSize, inputs: Inputs, parameters: Sequence[Tensor]) -> Tensor:
    out = inputs.v.new_zeros(*inputs.q.shape[:-1], inputs.v.shape[-1])
    inputs = in_compute_dtype(inputs)
    with full_precision(out):
        for block in blocks(rule, inputs, size):
            part = part_of(inputs, block)
            scores = soft_cap(grouped_scores(part.q * rule.scale, part.k), rule.softcap)
            logits = logits_of(scores, part, hidden_edges(rule, inputs, block.queries, block.keys))
            weights = normalize(rule.normalizer, logits, parameters)[..., -part.k.shape[-2] :]
            if rule.dropout:
                weights = weights * dropout_factors(rule, block, weights)
            values = unfold_heads(fold_heads(weights, part.k.shape[-3]) @ part.v, part.q.shape[-3])
            out[block.rows] = values.to(out.dtype)
    return out


def block_gradients(
    rule: Rule[nn.Module], size: BlockSize, needed: Sequence[bool], grad_out: Tensor, inputs: Inputs,
    parameters: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """One gradient, or None, for each of q, k, v, mask, bias, sink and the parameters of the normalizer."""
    tensors = (*inputs[:6], *parameters)
    inputs = in_compute_dtype(inputs)
    totals = [zeros_for(t, inputs.q) if n and t is not None else None for t, n in zip(tensors, needed, strict=True)]
    learned = [t.detach().requires_grad_(n) for t, n in zip(parameters, needed[6:], strict=True)]
    with full_precision(grad_out):
        for block in blocks(rule, inputs, size):
            part, total = part_of(inputs, block), part_of(Inputs(*totals[:6]), block)  # type: ignore[arg-type]
            hidden = hidden_edges(rule, inputs, block.queries, block.keys)
            grad = grad_out[block.rows].to(part.q.dtype)
            grads = _gradients_of_block(rule, block, part, hidden, grad, learned)
            for sum_so_far, more in zip((*total[:6], *totals[6:]), grads, strict=True):
                if sum_so_far is not None and more is not None:
                    sum_so_far += more.sum_to_size(sum_so_far.shape)
    return tuple(s if s is None or t is None else s.to(t.dtype) for s, t in zip(totals, tensors, strict=True))


def _gradients_of_block(
    rule: Rule[nn.Module], block: Block, part: Inputs, hidden: Hidden, grad_out: Tensor, learned: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """What this block adds to the gradients of q, k, v, mask, bias, sink and the learned parameters."""
    heads, kv_heads, keys = part.q.shape[-3], *part.k.shape[-3:-1]
    q = part.q * rule.scale
    scores = soft_cap(grouped_scores(q, part.k), rule.softcap)
    # Derivative of c tanh(s/c), from the capped scores themselves.
    slope = None if rule.softcap is None else 1 - (scores / rule.softcap) ** 2
    logits = logits_of(scores, part, hidden).requires_grad_()
    with torch.enable_grad():
        weights = normalize(rule.normalizer, logits, learned)[..., -keys:]
    grad_out = fold_heads(grad_out, kv_heads)
    kept, grad = weights.detach(), unfold_heads(grad_out @ part.v.mT, heads)
    if rule.dropout:
        factors = dropout_factors(rule, block, kept)
        kept, grad = kept * factors, grad * factors
    grad_v = fold_heads(kept, kv_heads).mT @ grad_out
    wanted = [logits, *(t for t in learned if t.requires_grad)]
    # These rows may not depend on a learned parameter.
    grad_logits, *of_learned = torch.autograd.grad(weights, wanted, grad, allow_unused=True)
    grad_learned = [of_learned.pop(0) if t.requires_grad else None for t in learned]
    grad_sink = None if part.sink is None else grad_logits[..., 0].sum(-1)
    grad_bias = grad_logits[..., -keys:]
    # position_bias is added after the cap, q and k meet before it.
    folded = fold_heads(grad_bias if slope is None else grad_bias * slope, kv_heads)
    grad_q = unfold_heads(folded @ part.k, heads) * rule.scale
    return grad_q, folded.mT @ fold_heads(q, kv_heads), grad_v, None, grad_bias, grad_sink, *grad_learned


def dropout_factors(rule: Rule[object], block: Block, weights: Tensor) -> Tensor:
    """0 or 1 / (1 - dropout), the same in forward and backward."""
    # Seeded by the block's number: backward draws the same factors without keeping them.
    generator = torch.Generator(weights.device).manual_seed(rule.seed + block.number)
    keep = 1 - rule.dropout
    return torch.empty_like(weights).bernoulli_(keep, generator=generator).div_(keep)


def zeros_for(t: Tensor, at_least: Tensor) -> Tensor:
    return torch.zeros(t.shape, dtype=torch.promote_types(t.dtype, at_least.dtype), device=t.device)


Results = tuple[Tensor, ...]  # the output, then the weights if they are returned


def without_hidden_keys(
    attend: Callable[[Rule[Normalizer], Inputs], Results], rule: Rule[Normalizer], inputs: Inputs
) -> Results:
    """attend(rule, inputs), where NaN and infinities of hidden keys and values reach no result and no gradient."""
    causal = rule.causal and inputs.q.shape[-2] > 1  # a single query is the last one, and sees all keys
    hides = causal or rule.window is not None or inputs.mask is not None or inputs.bias is not None
    if not hides or inputs.v.numel() == 0:
        return attend(rule, inputs)
    if can_read(*inputs[:3]):
        # With gradients the output does not tell: it is finite if only hidden keys, not their values, are NaN.
        results = None if needs_grad(*inputs, *rule.normalizer.parameters()) else attend(rule, inputs)
        if are_finite(*(inputs[:3] if results is None else results[:1])):
            return results or attend(rule, inputs)
        if results is not None and are_finite(*inputs[:3]):
            return results
    finite = inputs._replace(**{name: torch.nan_to_num(getattr(inputs, name), 0.0, 0.0, 0.0) for name in "qkv"})
    results = attend(rule, finite)
    return tuple(t.masked_fill(rows, math.nan) for t, rows in zip(results, _spoiled_rows(rule, inputs), strict=False))


def can_read(*tensors: Tensor) -> bool:
    """Whether values may decide what is computed, and reading them costs little."""
    if torch.compiler.is_compiling() or inside_transform():
        return False
    return all(t.device.type == "cpu" and type(t) in (Tensor, torch.nn.Parameter) for t in tensors)


def are_finite(*tensors: Tensor) -> bool:
    # A sum is one pass; the sum of finite numbers may overflow, which a second look tells apart.
    sums = (t.detach().sum(dtype=compute_dtype(t)).item() for t in tensors)
    return all(map(math.isfinite, sums)) or all(bool(torch.isfinite(t).all()) for t in tensors)


def _spoiled_rows(rule: Rule[object], inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Rows (..., H, Lq, 1) whose output, and whose weights, depend on numbers that are not finite."""
    # Of NaN the largest is NaN, which is not less.
    q, k, v = (~(t.detach().abs().amax(-1, keepdim=True) < math.inf) for t in inputs[:3])
    flags = torch.cat(torch.broadcast_tensors(k, v, torch.ones_like(k)), -1).float()  # type: ignore[no-untyped-call]
    seen = _seen(rule, inputs, flags) > 0.5
    keys, values, some = seen[..., :1], seen[..., 1:2], seen[..., 2:]
    weights = keys | (q & some)
    return weights | values, weights


def _seen(rule: Rule[object], inputs: Inputs, flags: Tensor) -> Tensor:
    """Sums of the flags (..., Hkv, Lk, n) over the keys that each query sees, (..., H, Lq, n)."""
    heads, queries, keys = *inputs.q.shape[-3:-1], inputs.k.shape[-2]
    flags = flags.repeat_interleave(heads // flags.shape[-3], -3)
    shown = None if inputs.bias is None else inputs.bias != -math.inf
    table = shown if inputs.mask is None else inputs.mask if shown is None else inputs.mask & shown
    nearest, farthest = visible_distances(rule, inputs)
    position = torch.arange(keys - queries, keys, device=flags.device)
    if table is not None and table.dim() > 1 and table.shape[-2] > 1:
        distance = position[:, None] - torch.arange(keys, device=flags.device)
        table = table & (distance >= nearest) & (distance <= farthest)
        return torch.einsum("...hqk,...hkn->...hqn", table[(None,) * (3 - table.dim())].float(), flags)
    if table is not None:
        flags = flags * torch.atleast_2d(table).mT  # type: ignore[no-untyped-call]
    # Differences of running sums: nothing of size Lq x Lk.
    totals = F.pad(flags.cumsum(-2), (0, 0, 1, 0))
    first, last = ((position + shift).clamp(0, keys) for shift in (-farthest, 1 - nearest))
    return totals[..., torch.maximum(first, last), :] - totals[..., first, :]
