"""Attention over the support: all options together against the specification, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_problems import Problem, make, problems, specified
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import _blockwise, _sparse
from inside import sparse_call as call
from normalizer_cases import slow
from tiers import ALL, examples
from torch import Tensor
from torch.testing import assert_close

import abbe

# Each map is a kernel to compile: the quick tier has one threshold, with learned values or without, and one selection.
SPECS = ("entmax:alpha=1.5", "scaled:of=entmax:alpha=1.5,t=-0.3,learn=true,heads={heads}", "topk:k=3")
MORE = (
    "sparsemax",
    "entmax:alpha=1.3",
    "entmax:alpha=1.7,learn=true,heads={heads}",
    "scaled:of=sparsemax,t=0.4,learn=true,heads={heads}",
    "scaled:of=entmax:alpha=1.5,t=-0.3,learn=true",
    "topp:p=0.7",
    "threshold:rel=0.3",
)
DRAWN = SPECS + MORE if ALL else SPECS
NEVER = 2.0  # a share of keys that no head exceeds


def as_double(problem: Problem) -> Problem:
    """The same problem in float64."""
    options = {
        name: value.detach().double().requires_grad_()
        if isinstance(value, Tensor) and value.dtype != torch.bool
        else value
        for name, value in problem.options.items()
    }
    q, k, v = (t.detach().double().requires_grad_() for t in (problem.q, problem.k, problem.v))
    normalizer = abbe.normalizer(problem.normalizer.initial_spec).double()
    normalizer.load_state_dict(problem.normalizer.state_dict())
    return Problem(q, k, v, normalizer, problem.grad_out.double(), options)


@settings(max_examples=examples(60), deadline=None)
@given(
    problem=problems(torch.float32, DRAWN, longest=12),
    rows=st.sampled_from([1, 2, 1 << 20]),
    packed_from=st.sampled_from([1, 99]),
)
def test_every_option_is_the_specification(problem: Problem, rows: int, packed_from: int) -> None:
    """Blocks of few rows and of all, scores from the kernel or from torch; a bias is fixed here, since one that learns
    takes full rows."""
    if problem.normalizer.name in ("topk", "topp", "threshold"):
        problem.options.pop("sink", None)  # takes full rows
    if "position_bias" in problem.options:
        problem.options["position_bias"].requires_grad_(False)
    expected = specified_without_bias(as_double(problem))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call, "SCORE_BYTES", 4 * rows)
        patch.setattr(call, "PACKED_BLOCK", 4 * rows)
        patch.setattr(call, "PACKED_FROM", packed_from)
        patch.setattr(call, "products_pay", lambda: True)
        patch.setattr(call, "MIN_QUERIES", 2)
        solved = solve_without_bias(problem, _sparse, dense_from=NEVER)
    assert_close([t.double() for t in solved], expected, rtol=2e-4, atol=2e-5)


def solve_without_bias(problem: Problem, attend: Any, **more: Any) -> list[Tensor]:
    kept = [t for t in problem.learned() if t is not problem.options.get("position_bias")]
    out = attend(problem.q, problem.k, problem.v, problem.normalizer, **problem.options, **more)
    if not out.requires_grad:
        return [out, *(torch.zeros_like(t) for t in kept)]
    return [out, *torch.autograd.grad(out, kept, problem.grad_out, materialize_grads=True)]


def specified_without_bias(problem: Problem) -> list[Tensor]:
    out, *grads = specified(problem)
    names = [t is problem.options.get("position_bias") for t in problem.learned()]
    return [out, *(grad for grad, is_bias in zip(grads, names, strict=True) if not is_bias)]


@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", slow("sparsemax"), slow("entmax:alpha=1.6")])
@pytest.mark.parametrize("options", [{"causal": True}, {"window": 100}, {"causal": True, "sink": 0.3, "softcap": 4.0}])
def test_long_rows_are_full_rows_in_float64(spec: str, options: dict[str, Any]) -> None:
    """Many segments per row, several blocks, grouped heads, more keys than queries."""
    inputs = make(heads=4, kv_heads=2, queries=300, keys=1100, width=16, dtype=torch.float32)
    exact = [t.detach().double().requires_grad_() for t in inputs]
    grad = torch.randn(4, 300, 16, generator=torch.Generator().manual_seed(1))
    out, wanted = _sparse(*inputs, spec, NEVER, **options), _blockwise(*exact, spec, **options)
    assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)
    grads = torch.autograd.grad(out, inputs, grad), torch.autograd.grad(wanted, exact, grad.double())
    for ours, theirs in zip(*grads, strict=True):
        assert_close(ours.double(), theirs, rtol=1e-3, atol=2e-5 * float(theirs.abs().max()))
