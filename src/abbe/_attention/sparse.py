"""Attention with maps that have exact zeros: only keys with a nonzero weight are read, kept and differentiated.

Heads that are not sparse, and everything that kernels cannot do, go through blocks of full rows. A compiled graph
cannot carry tensors of unknown size, so its backward operator finds the support again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from .._kernels.calls import KernelsBrokenError, usable_for
from ..normalizers import Normalizer, support_map, weights_of_map
from .engine import (
    Block,
    Inputs,
    Rule,
    batch_shape,
    best_block_size,
    block_gradients,
    block_output,
    compute_dtype,
    dense,
    full_precision,
    needs_grad,
    visible_distances,
)
from .sparse_passes import Scratch, Support, attend, gradients, support_of, zeros_like

# Shares of the visible keys above which full rows cost less than the support. With a backward pass the support pays up
# to a larger share, since it saves four matrix products.
DENSE = 1 / 2
DENSE_FORWARD = 1 / 4
PROBED = 4  # queries: the last ones, which see the most keys, tell how dense a head is
CLOSE = 1.5  # heads denser than allowed by at most this factor are not split off: copies cost more


class MapOfHeads(nn.Module):
    """A row-wise map with these parameters, in place of the normalizer that they come from."""

    def __init__(self, name: str, params: Tensor, differentiable: bool = False) -> None:
        super().__init__()
        self.name = name
        # A parameter is a leaf: if the graph must continue through it, it stays a tensor.
        self.params = params if differentiable else nn.Parameter(params.detach(), params.requires_grad)

    def forward(self, logits: Tensor) -> Tensor:
        return weights_of_map(self.name, logits, self.params)


def dense_key_heads(rule: Rule[str], inputs: Inputs, dense_from: float = DENSE) -> list[int]:
    """The key heads whose last queries, which see the most keys, give a weight to more than this share of them."""
    batch, heads, queries, _ = inputs.q.shape
    key_heads, keys = inputs.k.shape[1:3]
    last = slice(max(0, queries - PROBED), queries)
    block = Block((slice(0, batch),), slice(0, heads), slice(0, key_heads), last, slice(0, keys))
    counts = support_of(rule, inputs, block, Scratch(inputs, [block]))[2].view(batch, key_heads, -1)
    nearest, farthest = visible_distances(rule, inputs)
    shares = (counts.double().mean((0, 2)) / min(keys, farthest - nearest + 1)).tolist()
    if max(shares) <= CLOSE * dense_from:
        return list(range(key_heads)) if sum(shares) > dense_from * key_heads else []
    return [head for head, share in enumerate(shares) if share > dense_from]


def query_heads(inputs: Inputs, key_heads: Sequence[int]) -> Tensor:
    group = inputs.q.shape[1] // inputs.k.shape[1]
    return torch.tensor([head * group + i for head in key_heads for i in range(group)], dtype=torch.int64)


def take_heads(inputs: Inputs, key_heads: Sequence[int]) -> Inputs:
    """The part of the tensors that belongs to some key heads."""
    heads, shared = query_heads(inputs, key_heads), torch.tensor(key_heads)

    def own(t: Tensor | None, axis: int = -3) -> Any:
        return t if t is None or t.dim() < -axis or t.shape[axis] == 1 else t.index_select(axis, heads)

    q, k, v, mask, bias, sink, params = inputs
    sink = None if sink is None else sink[heads]
    return Inputs(q[:, heads], k[:, shared], v[:, shared], own(mask), own(bias), sink, own(params))


def put_heads(grads: Inputs, part: Inputs, key_heads: Sequence[int]) -> None:
    """Add the gradients of some key heads to those of all."""
    heads, shared = query_heads(grads, key_heads), torch.tensor(key_heads)
    grads.q[:, heads], grads.k[:, shared], grads.v[:, shared] = part[:3]
    if grads.sink is not None and part.sink is not None:
        grads.sink[heads] = part.sink
    if grads.params.dim() < 3 or grads.params.shape[-3] == 1:
        grads.params.add_(part.params)
    else:
        grads.params.index_add_(grads.params.dim() - 3, heads, part.params)


def dense_output(rule: Rule[str], inputs: Inputs) -> Tensor:
    by_rows, plain = _by_rows(rule, inputs)
    return block_output(by_rows, best_block_size(rule, plain), plain, [inputs.params])


def dense_gradients(rule: Rule[str], grad_out: Tensor, inputs: Inputs) -> Inputs:
    by_rows, plain = _by_rows(rule, inputs)
    needed = [True, True, True, False, False, inputs.sink is not None, True]
    with torch.enable_grad():
        size = best_block_size(rule, plain)
        return Inputs(*block_gradients(by_rows, size, needed, grad_out, plain, [inputs.params]))  # type: ignore[arg-type]


def _by_rows(rule: Rule[str], inputs: Inputs) -> tuple[Rule[nn.Module], Inputs]:
    """The same call with the map as a module, which has its parameters."""
    module = MapOfHeads(rule.normalizer, inputs.params.detach().requires_grad_())
    return Rule(module, *rule[1:]), inputs._replace(params=None)


def differentiable_output(rule: Rule[str], inputs: Inputs) -> Tensor:
    """The output in ordinary torch operations, for second derivatives; O(Lq x Lk) memory."""
    return dense(Rule(MapOfHeads(rule.normalizer, inputs.params, differentiable=True), *rule[1:]), inputs)[0]


# Bytes of support that are kept: the larger of this and a multiple of the inputs. Backward recomputes the rest.
KEPT_BYTES = 64 * 2**20
KEPT_PER_INPUT = 2


def sparse_attention(rule: Rule[Normalizer], inputs: Inputs, dense_from: float | None = None) -> Tensor | None:
    """Attention over the support alone, or None if this is not possible or full rows cost less.

    A head takes full rows if more than a share of `dense_from` of its keys have a weight: by default a half, or a
    quarter if no gradients are needed.
    """
    if not _applies(inputs):
        return None
    mapped = support_map(rule.normalizer, inputs.q, with_sink=inputs.sink is not None)
    if mapped is None:
        return None
    which, params = mapped
    if dense_from is None:
        dense_from = DENSE if needs_grad(*inputs, params) else DENSE_FORWARD
    batch = batch_shape(inputs)
    with full_precision(inputs.q):
        seed = torch.randint(2**62, ()) if rule.dropout else torch.zeros((), dtype=torch.int64)
        named = Rule(which.name, float(rule.scale), *rule[2:6])
        out = _attend(named, seed, _prepared(inputs, params.float(), batch), dense_from)
    return None if out is None else out.view(*batch, *out.shape[1:]).to(inputs.v.dtype)


def _attend(rule: Rule[str], seed: Tensor, inputs: Inputs, dense_from: float) -> Tensor | None:
    if torch.compiler.is_compiling():
        compiled: Tensor = _attention_op(*inputs, seed, *rule[:6])
        return compiled
    try:
        detached = Inputs(*(None if t is None else t.detach() for t in inputs))  # type: ignore[arg-type]
        dense = dense_key_heads(rule, detached, dense_from)
        if len(dense) == inputs.k.shape[1]:
            return None
        eager: Tensor = _Sparse.apply(rule._replace(seed=int(seed)), dense, *inputs)  # type: ignore[no-untyped-call]
    except KernelsBrokenError:
        return None
    return eager


def _applies(inputs: Inputs) -> bool:
    """Non-empty float32 on a CPU, and no learned bias, which would have a gradient of full size."""
    q, filled = inputs.q, inputs.q.numel() > 0 and inputs.v.numel() > 0
    return compute_dtype(q) == torch.float32 and usable_for(q) and not needs_grad(inputs.bias) and filled


def _prepared(inputs: Inputs, params: Tensor, batch: torch.Size) -> Inputs:
    """One batch dim, float32, contiguous."""
    q, k, v = (t.expand(*batch, *t.shape[-3:]).reshape(-1, *t.shape[-3:]).float().contiguous() for t in inputs[:3])
    mask, bias = (None if t is None else _one_batch_dim(t, batch) for t in inputs[3:5])
    bias = None if bias is None else bias.float()
    sink = None if inputs.sink is None else inputs.sink.float().contiguous()
    return Inputs(q, k, v, mask, bias, sink, params)


def _one_batch_dim(table: Tensor, batch: torch.Size) -> Tensor:
    """(B or 1, H or 1, Lq or 1, Lk or 1)."""
    table = table[(None,) * (len(batch) + 3 - table.dim())]
    if any(n != 1 for n in table.shape[:-3]) and table.shape[:-3] != batch:
        table = table.expand(*batch, *table.shape[-3:])
    return table.reshape(-1, *table.shape[-3:])


def attend_heads(rule: Rule[str], dense: Sequence[int], inputs: Inputs, limit: int) -> tuple[Tensor, list[Support]]:
    """Output of all heads, and the supports of the sparse heads' blocks."""
    if not dense:
        return attend(rule, inputs, limit)
    out = inputs.q.new_empty(*inputs.q.shape[:3], inputs.v.shape[3])
    out[:, query_heads(inputs, dense)] = dense_output(rule, take_heads(inputs, dense))
    kept: list[Support] = []
    if sparse := _others(inputs, dense):
        out[:, query_heads(inputs, sparse)], kept = attend(rule, take_heads(inputs, sparse), limit)
    return out, kept


def _others(inputs: Inputs, dense: Sequence[int]) -> list[int]:
    return [head for head in range(inputs.k.shape[1]) if head not in dense]


def gradients_of_heads(
    rule: Rule[str], dense: Sequence[int], grad_out: Tensor, inputs: Inputs, kept: Sequence[Support],
    needed: Sequence[bool],
) -> Inputs:  # fmt: skip
    grad_out = grad_out.contiguous()
    if not dense:
        return gradients(rule, grad_out, inputs, kept, needed)
    grads = zeros_like(inputs)
    part = dense_gradients(rule, grad_out[:, query_heads(inputs, dense)], take_heads(inputs, dense))
    put_heads(grads, part, dense)
    if sparse := _others(inputs, dense):
        part = gradients(rule, grad_out[:, query_heads(inputs, sparse)], take_heads(inputs, sparse), kept, needed)
        put_heads(grads, part, sparse)
    return grads


class _Sparse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rule: Rule[str], dense: list[int], *tensors: Any) -> Tensor:
        size = 4 * sum(t.numel() for t in tensors[:3])
        limit = max(KEPT_BYTES, KEPT_PER_INPUT * size) if any(ctx.needs_input_grad) else 0
        out, kept = attend_heads(rule, dense, Inputs(*tensors), limit)
        ctx.rule, ctx.dense, ctx.blocks = rule, dense, [support.block for support in kept]
        ctx.save_for_backward(*tensors, *(t for support in kept for t in support[1:]))
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        state = ctx.rule, ctx.dense, ctx.blocks, ctx.needs_input_grad[2:]
        return None, None, *_Gradients.apply(state, grad_out, *ctx.saved_tensors)  # type: ignore[no-untyped-call]


class _Gradients(torch.autograd.Function):
    """A separate function, so that its derivative can go through full rows."""

    @staticmethod
    def forward(ctx: Any, state: tuple[Any, ...], grad_out: Tensor, *saved: Any) -> Any:
        rule, dense, blocks, needed = state
        inputs, flat = Inputs(*saved[:7]), saved[7:]
        kept = [Support(block, *flat[4 * i : 4 * i + 4]) for i, block in enumerate(blocks)]
        ctx.rule, ctx.count = rule, len(saved)
        ctx.save_for_backward(grad_out, *inputs)
        grads = gradients_of_heads(rule, dense, grad_out, inputs, kept, needed)
        return tuple(grad if wanted else None for grad, wanted in zip(grads, needed, strict=True))

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        return None, *second_order(ctx.rule, ctx.saved_tensors, tangents), *(None,) * (ctx.count - 7)


def second_order(rule: Rule[str], saved: Sequence[Any], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients of grad_out and of all tensors, by differentiating full rows twice."""
    if rule.dropout:
        raise AbbeError("attention with dropout has second derivatives only inside torch.func transforms")
    deeper = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [_leaf(t, deeper) for t in saved]
        out = differentiable_output(rule, Inputs(*leaves[1:]))
        floating = [i for i, t in enumerate(leaves) if t is not None and t.requires_grad]
        inner = [leaves[i] for i in floating if i > 0]
        first = torch.autograd.grad(out, inner, leaves[0], create_graph=True, materialize_grads=True)
        by_place = dict(zip([i for i in floating if i > 0], first, strict=True))
        pairs = [(by_place[i + 1], t) for i, t in enumerate(tangents) if t is not None and i + 1 in by_place]
        pairs = [(grad, t) for grad, t in pairs if grad.requires_grad]
        grads = torch.autograd.grad(
            [grad for grad, _ in pairs], [leaves[i] for i in floating], [t for _, t in pairs],
            create_graph=deeper, materialize_grads=True,
        )  # fmt: skip
    of_all: list[Tensor | None] = [None] * len(leaves)
    for i, grad in zip(floating, grads, strict=True):
        of_all[i] = grad
    return of_all


def _leaf(t: Any, deeper: bool) -> Any:
    if t is None or not t.is_floating_point():
        return t
    return t if deeper and t.requires_grad else t.detach().requires_grad_()


def _op_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, sink: Tensor | None, params: Tensor,
    seed: Tensor, name: str, scale: float, softcap: float | None, causal: bool, window: int | None, dropout: float,
) -> Tensor:  # fmt: skip
    rule = Rule(name, scale, softcap, causal, window, dropout, int(seed))
    inputs = Inputs(q.contiguous(), k.contiguous(), v.contiguous(), mask, bias, sink, params)
    try:
        return attend_heads(rule, dense_key_heads(rule, inputs), inputs, 0)[0]
    except KernelsBrokenError:
        return dense_output(rule, inputs)


def _op_gradients(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, sink: Tensor | None,
    params: Tensor, seed: Tensor, name: str, scale: float, softcap: float | None, causal: bool, window: int | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients to q, k, v, sink (empty without one) and params."""
    rule = Rule(name, scale, softcap, causal, window, dropout, int(seed))
    inputs = Inputs(q.contiguous(), k.contiguous(), v.contiguous(), mask, bias, sink, params)
    try:
        grads = gradients_of_heads(rule, dense_key_heads(rule, inputs), grad_out, inputs, (), [True] * 7)
    except KernelsBrokenError:
        grads = dense_gradients(rule, grad_out, inputs)
    return grads.q, grads.k, grads.v, q.new_empty(0) if grads.sink is None else grads.sink, grads.params


_attention_op = torch.library.custom_op("abbe::sparse_attention", _op_forward, mutates_args=())
_gradients_op = torch.library.custom_op("abbe::sparse_attention_gradients", _op_gradients, mutates_args=())


@_attention_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    return q.new_empty(*q.shape[:3], v.shape[3])


@_gradients_op.register_fake
def _(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any, sink: Any, params: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    of_sink = q.new_empty(0) if sink is None else torch.empty_like(sink)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), of_sink, torch.empty_like(params)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.seed = inputs[:8]
    ctx.rule = inputs[8:]
    ctx.save_for_backward(*tensors)


def _op_backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
    tensors = ctx.saved_tensors
    q, k, v, sink, params = _gradients_op(grad_out, *tensors, ctx.seed, *ctx.rule)
    return q, k, v, None, None, None if tensors[5] is None else sink, params, *(None,) * 7


_attention_op.register_autograd(_op_backward, setup_context=_save)
