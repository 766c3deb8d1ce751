"""attention: all options together against the dense reference, on every path, with gradients."""

from __future__ import annotations

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
