"""attention needs the memory of a block, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from attention_problems import make
from inside import BlockSize, Options, _blockwise, sparse_call
from inside import attention_attend as public
from inside import attention_blocks as engine
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from abbe import attention

WITH_SUPPORT = ("entmax:alpha=1.5", "topk:k=8")


class LargestStorage(TorchDispatchMode):
    """Bytes of the largest storage that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, Tensor):
                self.largest = max(self.largest, t.untyped_storage().nbytes())
        return out


@contextmanager
def saved_bytes() -> Iterator[list[int]]:
    """Bytes of what autograd keeps for backward."""
    saved: list[int] = []

    def keep(t: Tensor) -> Tensor:
        saved.append(t.untyped_storage().nbytes())
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        yield saved


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", "softmax", "topk:k=8", "sigmoid", "hybrid:a=softmax,b=sparsemax"])
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window": 9}, {"sink": 1.0}, {"softcap": 5.0}, {"dropout": 0.1}]
)
def test_memory_is_a_block_forward_and_backward(spec: str, options: dict[str, Any]) -> None:
    length = 2048
    q, k, v = make(heads=2, kv_heads=1, queries=length, keys=length, width=8, dtype=torch.float32)
    block = sparse_call.PACKED_BLOCK if spec in WITH_SUPPORT else engine.BLOCK_BYTES
    limit = 1.01 * max(block, engine.MIN_QUERIES * 2 * length * 4)
    with LargestStorage() as seen:
        with saved_bytes() as saved:
            out = attention(q, k, v, spec, **options)
        out.sum().backward()
    assert seen.largest <= limit < length * length * 4
    assert sum(saved) < 4 * q.untyped_storage().nbytes() + 10 * kept_weights(q, k, v, spec, options)


def kept_weights(q: Tensor, k: Tensor, v: Tensor, spec: str, options: dict[str, Any]) -> int:
    """The weights that are not 0, where these are kept (8 bytes each, and some per row)."""
    if spec not in WITH_SUPPORT:
        return 0
    with torch.no_grad():
        return int(attention(q, k, v, spec, **options, return_weights=True)[1].count_nonzero())


@pytest.mark.parametrize("how", ["one batch dim", "no batch dim", "two batch dims", "strided", "mask", "learned bias"])
def test_softmax_never_stores_all_scores(how: str) -> None:
    """Torch would, of itself, in most of these cases."""
    length, dims = 1200, {"no batch dim": (), "two batch dims": (1, 2)}.get(how, (2,))
    q, k, v = make(heads=2, kv_heads=2, queries=length, keys=length, batch=dims, dtype=torch.float32)
    options: dict[str, Any] = {}
    if how == "strided":
        k = k.detach().mT.contiguous().mT.requires_grad_()
    if how == "mask":
        options["mask"] = torch.ones(length, length, dtype=torch.bool).tril()
    if how == "learned bias":
        options["position_bias"] = torch.zeros(length, length, requires_grad=True)
    passed_in = length * length * {"mask": 1, "learned bias": 4}.get(how, 0)
    with LargestStorage() as seen:
        attention(q, k, v, **options).sum().backward()
    assert seen.largest <= max(1.01 * engine.BLOCK_BYTES, passed_in)


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5"])
@pytest.mark.parametrize("size", [None, BlockSize(1, 1)])
def test_grouped_heads_never_repeat_keys_and_values(spec: str, size: BlockSize | None) -> None:
    q, k, v = make(heads=16, kv_heads=1, queries=1, keys=512, width=64)
    with LargestStorage() as seen:
        out = _blockwise(q, k, v, spec, size) if size else attention(q, k, v, spec)
        out.sum().backward()
    assert seen.largest <= k.untyped_storage().nbytes()


def blocks(length: int, **options: Any) -> list[int]:
    """How many pairs of a query and a key each block computes."""
    q, k, v = (torch.empty(2, length, 8) for _ in range(3))
    rule, inputs = public._checked(q, k, v, "softmax", Options(**options))
    size = engine.best_block_size(rule, inputs)
    pairs = [(block.queries, block.keys) for block in engine.blocks(rule, inputs, size)]
    return [(queries.stop - queries.start) * (keys.stop - keys.start) for queries, keys in pairs]


def test_hidden_keys_cost_nothing() -> None:
    assert sum(blocks(8192)) == 8192**2
    assert sum(blocks(8192, causal=True)) < 0.52 * 8192**2
    assert sum(blocks(8192, causal=True, window=100)) < 0.15 * 8192**2
    assert len(blocks(65536, causal=True, window=100)) < 200  # a narrow window has room for more queries
