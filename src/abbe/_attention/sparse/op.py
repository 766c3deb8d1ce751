"""The same attention by blocks of full rows, for heads that are not sparse and for everything kernels cannot do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from ..._kernels.switch import KernelsBrokenError, usable_for
from ...normalizers import Normalizer, support_map, weights_of_map
from ..engine import (
    Call,
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
from .backward import gradients
from .forward import Block, Scratch, Settings, Support, Tensors, attend, support_of

# Shares of the visible keys above which full rows cost less than the support. With a backward pass the support pays up
# to a larger share, since it saves four matrix products.
DENSE = 1 / 2
DENSE_FORWARD = 1 / 4
PROBED = 4  # queries
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


def dense_key_heads(settings: Settings, tensors: Tensors, dense_from: float = DENSE) -> list[int]:
    """The key heads whose last queries, which see the most keys, give a weight to more than this share of them."""
    batch, _, queries, _ = tensors.q.shape
    key_heads, keys = tensors.k.shape[1:3]
    last = slice(max(0, queries - PROBED), queries)
    block = Block(slice(0, batch), slice(0, key_heads), last, slice(0, keys))
    counts = support_of(settings, tensors, block, Scratch(tensors, [block]))[2].view(batch, key_heads, -1)
    nearest, farthest = visible_distances(settings.causal, settings.window, tensors.q, tensors.k)
    shares = (counts.double().mean((0, 2)) / min(keys, farthest - nearest + 1)).tolist()
    if max(shares) <= CLOSE * dense_from:
        return list(range(key_heads)) if sum(shares) > dense_from * key_heads else []
    return [head for head, share in enumerate(shares) if share > dense_from]


def take_heads(tensors: Tensors, key_heads: Sequence[int]) -> Tensors:
    """The part of the tensors that belongs to some key heads."""
    group = tensors.q.shape[1] // tensors.k.shape[1]
    heads, kv = query_heads(key_heads, group), torch.tensor(key_heads)

    def some(t: Tensor | None, index: Tensor, axis: int) -> Any:
        return t if t is None or t.dim() < -axis or t.shape[axis] == 1 else t.index_select(axis, index)

    q, k, v, mask, bias, sink, params = tensors
    return Tensors(
        q[:, heads], k[:, kv], v[:, kv], some(mask, heads, -3), some(bias, heads, -3),
        None if sink is None else sink[heads], some(params, heads, -3),
    )  # fmt: skip


def query_heads(key_heads: Sequence[int], group: int) -> Tensor:
    return torch.tensor([head * group + i for head in key_heads for i in range(group)], dtype=torch.int64)


def put_heads(grads: Tensors, part: Tensors, key_heads: Sequence[int]) -> None:
    """Add the gradients of some key heads to those of all."""
    group = grads.q.shape[1] // grads.k.shape[1]
    heads, kv = query_heads(key_heads, group), torch.tensor(key_heads)
    for whole, some, index in ((grads.q, part.q, heads), (grads.k, part.k, kv), (grads.v, part.v, kv)):
        whole[:, index] = some
    if grads.sink is not None and part.sink is not None:
        grads.sink[heads] = part.sink
    if grads.params.dim() < 3 or grads.params.shape[-3] == 1:
        grads.params.add_(part.params)
    else:
        grads.params.index_add_(grads.params.dim() - 3, heads, part.params)


def rule_of(settings: Settings, normalizer: nn.Module) -> Rule:
    return Rule(cast(Normalizer, normalizer), *settings[1:])


def dense_output(settings: Settings, seed: int, tensors: Tensors) -> Tensor:
    return block_output(*_as_blocks(settings, seed, tensors))


def dense_gradients(settings: Settings, seed: int, grad_out: Tensor, tensors: Tensors) -> Tensors:
    call, inputs, parameters = _as_blocks(settings, seed, tensors)
    needed = [True, True, True, False, False, tensors.sink is not None, True]
    with torch.enable_grad():
        grads = block_gradients(call, needed, grad_out, inputs, parameters)
    return Tensors(*grads)  # type: ignore[arg-type]


def _as_blocks(settings: Settings, seed: int, tensors: Tensors) -> tuple[Call, Inputs, list[Tensor]]:
    *some, params = tensors
    inputs = Inputs(*some)  # type: ignore[arg-type]
    rule = rule_of(settings, MapOfHeads(settings.name, params.detach().requires_grad_()))
    return Call(rule, best_block_size(rule, inputs), seed), inputs, [params]


def differentiable_output(settings: Settings, tensors: Tensors) -> Tensor:
    """In ordinary torch operations, for second derivatives; O(Lq x Lk) memory."""
    *some, params = tensors
    inputs = Inputs(*some)  # type: ignore[arg-type]
    return dense(rule_of(settings, MapOfHeads(settings.name, params, differentiable=True)), inputs)[0]


# Bytes of support that are kept: the larger of this and a multiple of the inputs. Backward recomputes the rest.
KEPT_BYTES = 64 * 2**20
KEPT_PER_INPUT = 2


def sparse_attention(rule: Rule, inputs: Inputs, dense_from: float | None = None) -> Tensor | None:
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
    settings = Settings(which.name, float(rule.scale), rule.softcap, rule.causal, rule.window, rule.dropout)
    batch = batch_shape(inputs)
    with full_precision(inputs.q):
        tensors = _prepared(inputs, params.float(), batch)
        seed = torch.randint(2**62, ()) if rule.dropout else torch.zeros((), dtype=torch.int64)
        out = _attend(settings, seed, tensors, dense_from)
    return None if out is None else out.view(*batch, *out.shape[1:]).to(inputs.v.dtype)


def _attend(settings: Settings, seed: Tensor, tensors: Tensors, dense_from: float) -> Tensor | None:
    if torch.compiler.is_compiling():
        compiled: Tensor = _attention_op(*tensors, seed, *settings)
        return compiled
    try:
        detached = Tensors(*(None if t is None else t.detach() for t in tensors))  # type: ignore[arg-type]
        dense = dense_key_heads(settings, detached, dense_from)
        if len(dense) == tensors.k.shape[1]:
            return None
        eager: Tensor = _Sparse.apply(settings, int(seed), dense, *tensors)  # type: ignore[no-untyped-call]
    except KernelsBrokenError:
        return None
    return eager


def _applies(inputs: Inputs) -> bool:
    """Non-empty float32 on a CPU, and no learned bias, which would have a gradient of full size."""
    q, _, v, _, bias, _ = inputs
    some = q.numel() > 0 and v.numel() > 0
    return compute_dtype(q) == torch.float32 and usable_for(q) and not needs_grad(bias) and some


def _prepared(inputs: Inputs, params: Tensor, batch: torch.Size) -> Tensors:
    """One batch dim, float32, contiguous."""
    q, k, v = (t.expand(*batch, *t.shape[-3:]).reshape(-1, *t.shape[-3:]).float().contiguous() for t in inputs[:3])
    mask, bias = (None if t is None else _one_batch_dim(t, batch) for t in inputs[3:5])
    bias = None if bias is None else bias.float()
    sink = None if inputs.sink is None else inputs.sink.float().contiguous()
    return Tensors(q, k, v, mask, bias, sink, params)


def _one_batch_dim(table: Tensor, batch: torch.Size) -> Tensor:
    """(B or 1, H or 1, Lq or 1, Lk or 1)."""
    table = table[(None,) * (len(batch) + 3 - table.dim())]
    if any(n != 1 for n in table.shape[:-3]) and table.shape[:-3] != batch:
        table = table.expand(*batch, *table.shape[-3:])
    return table.reshape(-1, *table.shape[-3:])


def attend_heads(
    settings: Settings, seed: int, dense: Sequence[int], tensors: Tensors, limit: int
) -> tuple[Tensor, list[Support]]:
    """Output of all heads, and the supports of the sparse heads' blocks."""
    if not dense:
        return attend(settings, seed, tensors, limit)
    key_heads = tensors.k.shape[1]
    sparse = [head for head in range(key_heads) if head not in dense]
    out = tensors.q.new_empty(*tensors.q.shape[:3], tensors.v.shape[3])
    group = tensors.q.shape[1] // key_heads
    out[:, query_heads(dense, group)] = dense_output(settings, seed, take_heads(tensors, dense))
    kept: list[Support] = []
    if sparse:
        out_sparse, kept = attend(settings, seed, take_heads(tensors, sparse), limit)
        out[:, query_heads(sparse, group)] = out_sparse
    return out, kept


def gradients_of_heads(
    settings: Settings, seed: int, dense: Sequence[int], grad_out: Tensor, tensors: Tensors, kept: Sequence[Support],
    needed: Sequence[bool],
) -> Tensors:  # fmt: skip
    grad_out = grad_out.contiguous()
    if not dense:
        return gradients(settings, seed, grad_out, tensors, kept, needed)
    key_heads = tensors.k.shape[1]
    sparse = [head for head in range(key_heads) if head not in dense]
    grads = Tensors(*(None if t is None else torch.zeros_like(t) for t in tensors))  # type: ignore[arg-type]
    group = tensors.q.shape[1] // key_heads
    part = dense_gradients(settings, seed, grad_out[:, query_heads(dense, group)], take_heads(tensors, dense))
    put_heads(grads, part, dense)
    if sparse:
        grad_part = grad_out[:, query_heads(sparse, group)]
        part = gradients(settings, seed, grad_part, take_heads(tensors, sparse), kept, needed)
        put_heads(grads, part, sparse)
    return grads


class _Sparse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, settings: Settings, seed: int, dense: list[int], *tensors: Any) -> Tensor:
        size = 4 * sum(t.numel() for t in tensors[:3])
        limit = max(KEPT_BYTES, KEPT_PER_INPUT * size) if any(ctx.needs_input_grad) else 0
        out, kept = attend_heads(settings, seed, dense, Tensors(*tensors), limit)
        ctx.settings, ctx.seed, ctx.dense, ctx.blocks = settings, seed, dense, [one.block for one in kept]
        ctx.save_for_backward(*tensors, *(t for one in kept for t in one[1:]))
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        state = ctx.settings, ctx.seed, ctx.dense, ctx.blocks, ctx.needs_input_grad[3:]
        grads = _Gradients.apply(state, grad_out, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return None, None, None, *grads


class _Gradients(torch.autograd.Function):
    """A separate function, so that its derivative can go through full rows."""

    @staticmethod
    def forward(ctx: Any, state: tuple[Any, ...], grad_out: Tensor, *saved: Any) -> Any:
        settings, seed, dense, blocks, needed = state
        tensors, flat = Tensors(*saved[:7]), saved[7:]
        kept = [Support(block, *flat[4 * i : 4 * i + 4]) for i, block in enumerate(blocks)]
        ctx.settings, ctx.count = settings, len(saved)
        ctx.save_for_backward(grad_out, *tensors)
        grads = gradients_of_heads(settings, seed, dense, grad_out, tensors, kept, needed)
        return tuple(grad if wanted else None for grad, wanted in zip(grads, needed, strict=True))

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        return None, *second_order(ctx.settings, ctx.saved_tensors, tangents), *(None,) * (ctx.count - 7)


def second_order(settings: Settings, saved: Sequence[Any], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients of grad_out and of all tensors, by differentiating full rows twice."""
    if settings.dropout:
        raise AbbeError("attention with dropout has second derivatives only inside torch.func transforms")
    deeper = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [_leaf(t, deeper) for t in saved]
        out = differentiable_output(settings, Tensors(*leaves[1:]))
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
    settings = Settings(name, scale, softcap, causal, window, dropout)
    tensors = Tensors(q.contiguous(), k.contiguous(), v.contiguous(), mask, bias, sink, params)
    try:
        return attend_heads(settings, int(seed), dense_key_heads(settings, tensors), tensors, 0)[0]
    except KernelsBrokenError:
        return dense_output(settings, int(seed), tensors)


def _op_gradients(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, sink: Tensor | None,
    params: Tensor, seed: Tensor, name: str, scale: float, softcap: float | None, causal: bool, window: int | None,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Of q, k, v, sink (empty without one) and params."""
    settings = Settings(name, scale, softcap, causal, window, dropout)
    tensors = Tensors(q.contiguous(), k.contiguous(), v.contiguous(), mask, bias, sink, params)
    try:
        dense = dense_key_heads(settings, tensors)
        grads = gradients_of_heads(settings, int(seed), dense, grad_out, tensors, (), [True] * 7)
    except KernelsBrokenError:
        grads = dense_gradients(settings, int(seed), grad_out, tensors)
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
    ctx.settings = inputs[8:]
    ctx.save_for_backward(*tensors)


def _op_backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
    tensors = ctx.saved_tensors
    q, k, v, sink, params = _gradients_op(grad_out, *tensors, ctx.seed, *ctx.settings)
    return q, k, v, None, None, None if tensors[5] is None else sink, params, *(None,) * 7


_attention_op.register_autograd(_op_backward, setup_context=_save)
