"""The engine of attention: scores -> logits -> weights -> output, densely or block by block.

What is special: memory is O(block x Lk) forward and backward, for every normalizer. The blockwise path keeps no
weights; its backward recomputes them for each block, uses autograd only for the gradient of the normalizer, and has
closed forms for the others. Grouped-query heads are folded into the query axis, so that one kv head meets all its query
heads in one matrix product and is never repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._errors import AbbeError
from .blocks import (
    BLOCK_BYTES,
    EVERY,
    Block,
    BlockSize,
    Call,
    Hidden,
    Inputs,
    Rule,
    batch_shape,
    best_block_size,
    blocks,
    compute_dtype,
    full_precision,
    hidden_edges,
    in_compute_dtype,
    part_of,
)
from .scores import fold_heads, grouped_scores, logits_of, normalize, soft_cap, unfold_heads


def dense(rule: Rule, inputs: Inputs) -> tuple[Tensor, Tensor]:
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


def blockwise(rule: Rule, inputs: Inputs, size: BlockSize | None = None) -> Tensor:
    """Output in O(block x Lk) memory; by default the block size is chosen automatically."""
    batch = batch_shape(inputs)
    q = inputs.q.expand(*batch, *inputs.q.shape[-3:])
    aligned = (None if t is None else t[(None,) * (q.dim() - t.dim())] for t in inputs[1:5])
    # From torch's global generator, so that torch.manual_seed applies; without dropout it is not used.
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
        return block_output(call, Inputs(*tensors[:6]), tensors[6:])

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        needed = ctx.needs_input_grad[1:]
        grads = _Gradients.apply(ctx.call, needed, grad_out, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return None, *grads


class _Gradients(torch.autograd.Function):
    """A separate function, so that its derivative can raise a clear error."""

    @staticmethod
    def forward(ctx: Any, call: Call, needed: Sequence[bool], grad_out: Tensor, *tensors: Any) -> Any:
        return block_gradients(call, needed, grad_out, Inputs(*tensors[:6]), tensors[6:])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise AbbeError(
            f"attention has second derivatives only if its scores fit in one block of {BLOCK_BYTES >> 20} MiB, "
            "inside torch.func transforms, or with return_weights=True"
        )


def block_output(call: Call, inputs: Inputs, parameters: Sequence[Tensor]) -> Tensor:
    rule = call.rule
    out = inputs.v.new_zeros(*inputs.q.shape[:-1], inputs.v.shape[-1])
    inputs = in_compute_dtype(inputs)
    with full_precision(out):
        for block in blocks(call, inputs):
            part = part_of(inputs, block)
            scores = soft_cap(grouped_scores(part.q * rule.scale, part.k), rule.softcap)
            logits = logits_of(scores, part, hidden_edges(rule, inputs, block.queries, block.keys))
            weights = normalize(rule.normalizer, logits, parameters)[..., -part.k.shape[-2] :]
            if rule.dropout:
                weights = weights * dropout_factors(call, block, weights)
            values = unfold_heads(fold_heads(weights, part.k.shape[-3]) @ part.v, part.q.shape[-3])
            out[(*block.batch, EVERY, block.queries)] = values.to(out.dtype)
    return out


def block_gradients(
    call: Call, needed: Sequence[bool], grad_out: Tensor, inputs: Inputs, parameters: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """One gradient, or None, for each of q, k, v, mask, bias, sink and the parameters of the normalizer."""
    tensors = (*inputs, *parameters)
    inputs = in_compute_dtype(inputs)
    totals = [zeros_for(t, inputs.q) if n and t is not None else None for t, n in zip(tensors, needed, strict=True)]
    learned = [t.detach().requires_grad_(n) for t, n in zip(parameters, needed[6:], strict=True)]
    with full_precision(grad_out):
        for block in blocks(call, inputs):
            part, total = part_of(inputs, block), part_of(Inputs(*totals[:6]), block)  # type: ignore[arg-type]
            hidden = hidden_edges(call.rule, inputs, block.queries, block.keys)
            grad = grad_out[(*block.batch, EVERY, block.queries)].to(part.q.dtype)
            grads = _gradients_of_block(call, block, part, hidden, grad, learned)
            for sum_so_far, more in zip((*total, *totals[6:]), grads, strict=True):
                if sum_so_far is not None and more is not None:
                    sum_so_far += more.sum_to_size(sum_so_far.shape)
    return tuple(s if s is None or t is None else s.to(t.dtype) for s, t in zip(totals, tensors, strict=True))


def _gradients_of_block(
    call: Call, block: Block, part: Inputs, hidden: Hidden, grad_out: Tensor, learned: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """What this block adds to the gradients of q, k, v, mask, bias, sink and the learned parameters."""
    rule, heads, kv_heads, keys = call.rule, part.q.shape[-3], *part.k.shape[-3:-1]
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
        factors = dropout_factors(call, block, kept)
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


def dropout_factors(call: Call, block: Block, weights: Tensor) -> Tensor:
    """0 or 1 / (1 - dropout), the same in forward and backward."""
    # Seeded by the block's number: backward draws the same factors without keeping them.
    generator = torch.Generator(weights.device).manual_seed(call.seed + block.number)
    keep = 1 - call.rule.dropout
    return torch.empty_like(weights).bernoulli_(keep, generator=generator).div_(keep)


def zeros_for(t: Tensor, at_least: Tensor) -> Tensor:
    return torch.zeros(t.shape, dtype=torch.promote_types(t.dtype, at_least.dtype), device=t.device)
