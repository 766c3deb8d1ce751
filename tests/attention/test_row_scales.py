"""logn and ssmax over causal rows take torch's own kernel, with queries that carry the factor of their row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import abbe

SPECS = ["ssmax:s=0.3", "logn:trained=16,slope=0.5/3,beyond=true,learn=true", "logn:trained=16,floor=1"]


def states(length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    chance = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(1, heads, length, 8, generator=chance).to(dtype) for heads in (2, 1, 1))
    return q, k, v


@pytest.mark.parametrize("spec", SPECS)
def test_output_and_gradients_are_those_of_full_rows(spec: str) -> None:
    """1,100 queries and keys are too many for one block."""
    length = 1100
    results = []
    for dense in (False, True):
        made = abbe.normalizer(spec)
        inputs = [x.requires_grad_() for x in states(length)]
        if dense:
            output, _ = abbe.attention(*inputs, made, causal=True, return_weights=True)
        else:
            output = abbe.attention(*inputs, made, causal=True)
        (output * torch.linspace(-1, 1, length)[:, None]).sum().backward()
        results.append([output, *(x.grad for x in inputs), *(raw.grad for raw in made.parameters())])
    for fast, full in zip(*results, strict=True):
        torch.testing.assert_close(fast, full, rtol=1e-4, atol=1e-4)


def test_rows_up_to_trained_are_those_of_softmax_bit_for_bit() -> None:
    q, k, v = states(1100)
    made = abbe.normalizer("logn:trained=1000,slope=4,beyond=true")
    output, softmax = (abbe.attention(q, k, v, which, causal=True) for which in (made, "softmax"))
    assert torch.equal(output[:, :, :1000], softmax[:, :, :1000])
    assert not torch.equal(output[:, :, 1000:], softmax[:, :, 1000:])


@pytest.mark.parametrize("spec", SPECS)
def test_the_query_of_a_generation_step_sees_all_keys(spec: str) -> None:
    q, k, v = states(1100)
    output = abbe.attention(q[:, :, -1:], k, v, spec, causal=True)
    torch.testing.assert_close(output, abbe.attention(q, k, v, spec, causal=True)[:, :, -1:], rtol=1e-4, atol=1e-4)
    mask = torch.arange(1100) < 40
    seen = abbe.attention(q[:, :, -1:], k[:, :, :40], v[:, :, :40], spec, causal=True)
    masked = abbe.attention(q[:, :, -1:], k, v, spec, causal=True, mask=mask)
    torch.testing.assert_close(masked, seen, rtol=1e-4, atol=1e-4)


def test_heads_that_do_not_fit_are_refused() -> None:
    q, k, v = states(1100)
    with pytest.raises(abbe.AbbeError, match="3 heads"):
        abbe.attention(q, k, v, "logn:trained=16,slope=0.5/3/1,learn=true", causal=True)


def test_small_problems_have_second_derivatives_in_the_slopes() -> None:
    q, k, v = states(20, torch.float64)
    made = abbe.normalizer("logn:trained=4,slope=0.5/3,beyond=true,learn=true").double()
    (raw,) = made.parameters()
    (first,) = torch.autograd.grad(abbe.attention(q, k, v, made, causal=True).square().sum(), raw, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), raw)
    assert bool((second != 0).all())
