"""attention: precision, layouts, and who owns the parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attention_problems import TINY, make
from inside import BlockSize, _blockwise
from torch import Tensor
from torch.testing import assert_close

import abbe
from abbe import attention


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [None, BlockSize(1, 16)])
@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", "sigmoid"])
def test_half_precision_is_computed_in_float32(spec: str, dtype: torch.dtype, size: BlockSize | None) -> None:
    q, k, v = make(queries=64, keys=64, width=16, dtype=torch.float32)
    halves = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
    exact = [t.detach().double().requires_grad_() for t in halves]
    bias = torch.linspace(-1, 1, 64)
    options = {"causal": True, "sink": 0.25}
    out = (
        _blockwise(*halves, spec, size, position_bias=bias, **options)
        if size
        else attention(*halves, spec, position_bias=bias, **options)
    )
    assert out.dtype == dtype
    expected = attention(*exact, spec, position_bias=bias.double(), **options)
    grad = torch.randn_like(out)
    grads = torch.autograd.grad(out, halves, grad)
    wanted = torch.autograd.grad(expected, exact, grad.double())
    rounding = torch.finfo(dtype).eps
    for value, precise in zip((out, *grads), (expected, *wanted), strict=True):
        assert value.dtype == dtype
        assert_close(value.double(), precise, rtol=0.51 * rounding, atol=2e-5)


@pytest.mark.quick(2)
@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5"])
@pytest.mark.parametrize("length", [8, 600])
def test_autocast_changes_nothing(spec: str, length: int) -> None:
    q, k, v = make(queries=length, keys=length, dtype=torch.float32)
    expected = attention(q, k, v, spec)
    (wanted,) = torch.autograd.grad(expected.sum(), q)
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(q, k, v, spec)
    assert torch.equal(out, expected)
    assert torch.equal(torch.autograd.grad(out.sum(), q)[0], wanted)


def test_the_backward_of_blocks_leaves_autocast_too() -> None:
    q, k, v = make(dtype=torch.float32)
    out = _blockwise(q, k, v, "sparsemax", TINY)
    (wanted,) = torch.autograd.grad(out.sum(), q, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(torch.autograd.grad(out.sum(), q)[0], wanted)


def test_gradients_have_the_dtypes_of_what_they_belong_to() -> None:
    q, k, v = make(dtype=torch.bfloat16)
    bias, sink = torch.zeros(6, 6, requires_grad=True), torch.zeros(4, dtype=torch.float64, requires_grad=True)
    out = _blockwise(q, k, v, "sparsemax", TINY, position_bias=bias, sink=sink)
    grads = torch.autograd.grad(out.sum(), (q, bias, sink))
    assert [g.dtype for g in grads] == [torch.bfloat16, torch.float32, torch.float64]


def test_transposed_and_expanded_inputs() -> None:
    q, k, v = make(batch=(2,))
    turned = [t.detach().transpose(-3, -2).contiguous().transpose(-3, -2).requires_grad_() for t in (q, k, v)]
    bias = torch.randn(6, dtype=torch.float64, requires_grad=True)
    expected, ours = (
        _blockwise(q, k, v, "sparsemax", TINY, position_bias=bias),
        _blockwise(*turned, "sparsemax", TINY, position_bias=bias.expand(2, 4, 6, 6)),
    )
    assert_close(ours, expected)
    grads = [torch.autograd.grad((out**2).sum(), (*ins, bias)) for out, ins in ((expected, (q, k, v)), (ours, turned))]
    assert_close(grads[1], grads[0])


def test_a_number_is_the_sink_of_all_heads() -> None:
    q, k, v = make()
    assert_close(attention(q, k, v, sink=2), attention(q, k, v, sink=torch.full((4,), 2.0)))
    assert attention(q, k, v, sink=50.0).abs().max() < 1e-9


def test_lent_parameters_are_those_of_backward_too() -> None:
    normalizer = abbe.normalizer("entmax:alpha=1.5,learn=true,heads=4").double()
    lent = {name: (p.detach() + 0.7).requires_grad_() for name, p in normalizer.named_parameters()}
    q, k, v = make()

    class Model(torch.nn.Module):
        def __init__(self, attend: Callable[..., Tensor]) -> None:
            super().__init__()
            self.normalizer, self.attend = normalizer, attend

        def forward(self) -> Tensor:
            return self.attend(q, k, v, self.normalizer)

    def gradients(attend: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        given = {f"normalizer.{name}": p for name, p in lent.items()}
        out = torch.func.functional_call(Model(attend), given, ())
        return torch.autograd.grad((out**2).sum(), (q, *lent.values()))

    assert_close(gradients(lambda *a: _blockwise(*a, TINY)), gradients(attention))


@pytest.mark.parametrize("spec", ["softmax", "sparsemax"])
def test_empty_batches_and_no_queries(spec: str) -> None:
    for how in ({"batch": (0,)}, {"queries": 0}):
        q, k, v = make(**how)
        out = attention(q, k, v, spec, causal=True)
        assert out.shape == q.shape
        out.sum().backward()
        assert torch.equal(k.grad, torch.zeros_like(k))
        assert _blockwise(q, k, v, spec).shape == q.shape
        with torch.no_grad():
            assert attention(q, k, v, spec).shape == q.shape
