"""The same attention by blocks of full rows, for heads that are not sparse and for everything kernels cannot do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...normalizers import Normalizer, weights_of_map
from ..blocks import Call, Inputs, Rule, best_block_size, visible_distances
from ..engine import block_gradients, block_output, dense
from .call import Block, Settings, Tensors
from .forward import Scratch, support_of

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
