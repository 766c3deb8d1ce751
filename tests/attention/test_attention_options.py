"""attention: all options together against the dense reference, on every path, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_problems import TINY, Problem, make, problems, specified, typed_attention
from attention_reference import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import BlockSize, _blockwise
from tiers import examples
from torch import Tensor
from torch.testing import assert_close

import abbe
from abbe import attention


@settings(max_examples=examples(300))
@given(problem=problems(), size=st.builds(BlockSize, st.integers(1, 4), st.integers(1, 3), st.none()))
def test_every_path_is_the_reference(problem: Problem, size: BlockSize) -> None:
    expected = specified(problem)
    assert_close(problem.solve(typed_attention), expected, rtol=1e-8, atol=1e-10)
    assert_close(problem.solve(_blockwise, size=size), expected, rtol=1e-8, atol=1e-10)
    with torch.no_grad():  # where torch's kernel is taken, if at all
        assert_close(
            attention(problem.q, problem.k, problem.v, problem.normalizer, **problem.options),
            expected[0],
            rtol=1e-8,
            atol=1e-10,
        )


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(problem=problems(torch.float32), size=st.builds(BlockSize, st.integers(1, 4), st.integers(1, 3), st.none()))
@pytest.mark.usefixtures("fused")
def test_float32_with_the_fused_normalizers(problem: Problem, size: BlockSize) -> None:
    expected = specified(problem)
    assert_close(problem.solve(_blockwise, size=size), expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=30)
@given(problem=problems())
def test_returned_weights_are_the_reference(problem: Problem) -> None:
    options = problem.options
    expected = reference(problem.q, problem.k, problem.v, problem.normalizer, **options)
    outputs = attention(problem.q, problem.k, problem.v, problem.normalizer, **options, return_weights=True)
    assert_close(outputs, expected, rtol=1e-8, atol=1e-10)
    dropped = attention(
        problem.q, problem.k, problem.v, problem.normalizer, **options, dropout=0.9, return_weights=True
    )
    assert_close(dropped[1], expected[1], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("spec", [info.example for info in abbe.list_normalizers()])
@pytest.mark.parametrize("size", [None, TINY])
def test_queries_without_keys_give_zeros_and_zero_gradients(spec: str, size: BlockSize | None) -> None:
    normalizer = abbe.normalizer(spec).double()
    heads = max((len(p) for p in normalizer.parameters() if p.dim() == 3), default=2)
    q, k, v = make(heads=heads, kv_heads=1, queries=7, keys=5)
    bias, sink = torch.randn(7, 5, dtype=torch.float64).requires_grad_(), torch.randn(heads).double().requires_grad_()
    mask = torch.ones(7, 5, dtype=torch.bool)
    mask[4] = False
    blind = [0, 1, 4]  # two queries before the first key, one masked
    options = {"causal": True, "mask": mask, "position_bias": bias, "sink": sink}
    out = _blockwise(q, k, v, normalizer, size, **options) if size else attention(q, k, v, normalizer, **options)
    assert torch.equal(out[:, blind], torch.zeros_like(out[:, blind]))
    grads = torch.autograd.grad(out.sum() + (out**2).sum(), (q, k, v, bias, sink))
    assert all(torch.isfinite(grad).all() for grad in grads)
    assert torch.equal(grads[0][:, blind], torch.zeros_like(grads[0][:, blind]))
    assert torch.equal(grads[3][blind], torch.zeros_like(grads[3][blind]))


@pytest.mark.parametrize("size", [None, TINY])
def test_dropout_keeps_the_mean_and_drops_single_weights(size: BlockSize | None) -> None:
    q, k, _ = make(heads=2, kv_heads=1, keys=40, requires_grad=False)
    v = torch.eye(40, dtype=torch.float64)[None]  # so that the output is the weights
    weights = attention(q, k, v, "sigmoid")
    rate, options = 0.25, {"dropout": 0.25}

    def dropped() -> Tensor:
        return _blockwise(q, k, v, "sigmoid", size, **options) if size else attention(q, k, v, "sigmoid", **options)

    factors = torch.stack([dropped() / weights for _ in range(300)])
    assert_close(factors, (factors > 0).double() / (1 - rate))
    assert abs(factors.mean() - 1) < 0.01
    assert (factors.mean(0) - 1).abs().max() < 0.2  # no weight is favoured
    assert not torch.equal(factors[..., :2, :] > 0, factors[..., 2:4, :] > 0)  # nor do two blocks drop the same
    torch.manual_seed(3)
    first = dropped()
    assert not torch.equal(dropped(), first)
    torch.manual_seed(3)
    assert torch.equal(dropped(), first)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"sink": 0.5}])
def test_backward_drops_what_forward_dropped(options: dict[str, Any]) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(5)
        return _blockwise(q, k, v, "softmax", TINY, dropout=0.4, **options)

    q, k, v = make(heads=2, kv_heads=1, queries=4, keys=5, width=2)
    assert torch.autograd.gradcheck(attend, (q, k, v))
    out = attend(q, k, v)  # linear in v
    (grad,) = torch.autograd.grad(out.sum(), v)
    assert_close((grad * v).sum(), out.sum())


# -- Precision, layouts, owners of parameters -------------------------------------------------------------------------


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


# -- Derivatives of derivatives, transforms, compilation --------------------------------------------------------------


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
