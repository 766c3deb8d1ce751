"""attention: derivatives of derivatives, transforms, compilation."""

from __future__ import annotations

import pytest
import torch
from attention_problems import TINY, make
from inside import _blockwise
from torch import Tensor
from torch.testing import assert_close

import abbe
from abbe import attention


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5", "stick-breaking"])
def test_second_derivatives_in_small_problems(spec: str) -> None:
    inputs = make(heads=2, kv_heads=1, queries=3, keys=3, width=2)
    bias = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    sink = torch.zeros(2, dtype=torch.float64, requires_grad=True)

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sink: Tensor) -> Tensor:
        return attention(q, k, v, spec, causal=True, softcap=4.0, position_bias=bias, sink=sink)

    assert torch.autograd.gradgradcheck(attend, (*inputs, bias, sink))
    assert torch.autograd.gradgradcheck(lambda *qkv: attention(*qkv, spec, causal=True), inputs)


def test_second_derivatives_of_blocks_are_refused_when_they_are_asked_for() -> None:
    q, k, v = make()
    out = _blockwise(q, k, v, "sparsemax", TINY)
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    assert_close(grad, torch.autograd.grad(attention(q, k, v, "sparsemax").sum(), q)[0])
    with pytest.raises(abbe.AbbeError, match="second derivatives only if its scores fit in one block"):
        torch.autograd.grad(grad.sum(), q)


@pytest.mark.quick(2)
@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5"])
@pytest.mark.parametrize("length", [6, 600])
def test_transforms(spec: str, length: int) -> None:
    q, k, v = make(queries=length, keys=length, batch=(2,), heads=2, kv_heads=1)
    with torch.no_grad():
        mask = torch.ones(2, length, length, dtype=torch.bool).tril()
        expected = attention(q, k, v, spec, mask=mask[:, None])
        mapped = torch.vmap(lambda q, k, v, mask: attention(q, k, v, spec, mask=mask))(q, k, v, mask)
        assert_close(mapped, expected)
    (wanted,) = torch.autograd.grad(attention(q, k, v, spec).sum(), q)
    assert_close(torch.func.grad(lambda q: attention(q, k, v, spec).sum())(q), wanted)
    _, tangent = torch.func.jvp(lambda q: attention(q, k, v, spec), (q,), (torch.ones_like(q),))
    assert_close(tangent.sum(), wanted.sum())


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", "softmax"])
def test_compiles_in_one_graph(spec: str) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, spec, causal=True)

    torch._dynamo.reset()
    inputs = make(queries=300, keys=300, dtype=torch.float32, batch=(2,))  # more than a block
    expected = attend(*inputs)
    compiled = torch.compile(attend, fullgraph=True)(*inputs)
    assert_close(compiled, expected)
    grads = [torch.autograd.grad((out**2).sum(), inputs) for out in (compiled, expected)]
    assert_close(*grads, rtol=1e-4, atol=1e-5)
    mapped = torch.compile(torch.vmap(attend), fullgraph=True, backend="eager")(*inputs)
    assert_close(mapped, expected)
