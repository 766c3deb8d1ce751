"""The Triton kernels in Triton's interpreter, on CPU tensors: run by test_kernel_triton.py in a process of its own.

The interpreter must be chosen before triton is imported (TRITON_INTERPRET=1), and then holds for the whole process.
Tolerances are those of the CPU kernels (test_kernels.py). A kernel that fails gives up with a RuntimeWarning, which is
an error in tests, and each test must launch a kernel: none passes because the reference answered.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from adversarial_rows import adversarial_rows
from inside import normalizers_dispatch as _dispatch
from inside import normalizers_row_map as _row_map
from inside import triton_choice, triton_run
from normalizer_cases import random_logits, slow
from test_kernels import EPS, assert_kernel_is_right, derivatives, in_float64
from torch import Tensor

import abbe

SPECS = ("sparsemax", "entmax:alpha=1.5", "entmax:alpha=1.3,learn=true")
MORE = ("entmax:alpha=1.000001,learn=true", "entmax:alpha=1.01", "entmax:alpha=1.9,learn=true", "entmax:alpha=1.999")
SCALED = ("asentmax:alpha=2,learn=true", "asentmax:alpha=1.5,learn=true", "asentmax:alpha=1.25,learn=true")
HOSTILE = ("masked integers", "times 1e-4", "far above", "normal", "ties at the top", "times 1e4", "masked")


# numpy, of the maximum of a row that is all NaN
pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice encountered")


@pytest.fixture(autouse=True)
def _interpreted() -> Iterator[None]:
    """CPU rows of any size are taken for rows of a GPU."""
    assert os.environ.get("TRITON_INTERPRET") == "1"
    # Lanes beyond the end of a row divide by 0, as on a GPU, where nobody warns.
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(triton_choice, "DEVICES", ("cpu",))
        patch.setattr(_dispatch, "FUSED_FROM", 1)
        patch.setattr(triton_run, "_broken", False)
        launch, launched = triton_run._launch, []
        patch.setattr(
            triton_run, "_launch", lambda which, *rest, **named: launched.append(launch(which, *rest, **named))
        )
        yield
        assert launched
        assert not triton_run.given_up()


def weights_of(name: str, logits: Tensor, params: Tensor) -> Tensor:
    return _dispatch.row_weights(_row_map.MAPS[name], logits, params)


def test_triton_is_not_imported_before_rows_of_a_gpu_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """First in this file: nothing before has imported it, abbe included."""
    monkeypatch.setattr(triton_choice, "DEVICES", ("cuda",))
    monkeypatch.setattr(_dispatch, "FUSED_FROM", 1 << 62)
    abbe.normalizer("sparsemax")(torch.randn(3, 5))
    assert "triton" not in sys.modules
    monkeypatch.undo()
    monkeypatch.setattr(triton_choice, "DEVICES", ("cpu",))
    monkeypatch.setattr(_dispatch, "FUSED_FROM", 1)
    abbe.normalizer("sparsemax")(torch.randn(3, 5))
    assert "triton" in sys.modules


@pytest.mark.parametrize("keys", [65, *map(slow, (1, 7, 33, 128, 1000))])
@pytest.mark.parametrize("spec", [*SPECS, *map(slow, (*MORE, *SCALED))])
def test_hostile_rows(spec: str, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = adversarial_rows(keys)
    for kind in HOSTILE[:3] if keys == 65 and spec in SPECS else set(kinds) - {"denormal"}:
        rows = kinds[kind] if keys < 1000 else kinds[kind][:1, :1]  # each row a program of its own
        assert_kernel_is_right(abbe.normalizer(spec), rows, monkeypatch, kind)


@pytest.mark.parametrize("spec", SPECS)
def test_many_rows_have_the_support_of_the_reference(spec: str) -> None:
    """A threshold that is rounded up in one row and down in the next: no key off the support gets a crumb."""
    rows, made = random_logits(48, 64, scale=1.0, dtype=torch.float32), abbe.normalizer(spec)
    weights, exact = made(rows).detach().double(), in_float64(made)(rows.double()).detach()
    torch.testing.assert_close(weights, exact, rtol=0, atol=8 * EPS)
    unclear = (exact > 0) & (exact < 1e-6)
    assert bool((((weights > 0) == (exact > 0)) | unclear).all())
    assert float((weights.sum(-1) - 1).abs().max()) <= 4 * EPS


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_the_longest_rows(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = adversarial_rows(triton_choice.MOST_KEYS)
    for kind in ("times 1e-4", "masked"):
        assert_kernel_is_right(abbe.normalizer(spec), kinds[kind][:1, :1], monkeypatch, kind)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [5000, 8192, 8193, 20_000])  # from 8193 on a row is read block by block
@pytest.mark.parametrize("spec", [*SPECS, "entmax:alpha=1.9,learn=true", "asentmax:alpha=1.25,learn=true"])
def test_long_rows(spec: str, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = adversarial_rows(keys)
    for kind in HOSTILE:
        assert_kernel_is_right(abbe.normalizer(spec), kinds[kind][:1, :1], monkeypatch, kind)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [7, 129, 1000, 9000])
@pytest.mark.parametrize("spec", [*SPECS, *MORE])
def test_rows_sum_to_one(spec: str, keys: int) -> None:
    for kind, rows in adversarial_rows(keys, seed=2).items():
        weights = abbe.normalizer(spec)(rows[:1] if keys < 1000 else rows[:1, :1]).detach().double()
        off = (weights.sum(-1) - 1).abs().masked_fill((weights == 0).all(-1), 0)
        assert float(off.max()) <= 4 * EPS, kind


@pytest.mark.parametrize("keys", [5, slow(9000)])
@pytest.mark.parametrize("spec", SPECS)
def test_rows_without_keys_and_rows_that_are_not_finite(spec: str, keys: int) -> None:
    rows = random_logits(6, keys, dtype=torch.float32)
    rows[0] = -torch.inf
    rows[1, 2], rows[2, 3], rows[3, 0] = torch.nan, torch.inf, -torch.inf
    rows[4, : keys - 1] = -torch.inf
    made = abbe.normalizer(spec)
    weights, of_logits, of_params = derivatives(made, rows, random_logits(6, keys, seed=1, dtype=torch.float32))
    for values in (weights, of_logits):
        assert bool((values[0] == 0).all())
        assert bool(values[1:3].isnan().all())
        assert bool(values[3:].isfinite().all())
    assert float(weights[3, 0]) == 0
    assert weights[4].tolist() == [0.0] * (keys - 1) + [1.0]
    assert all(bool(values.isnan().all()) for values in of_params)


@pytest.mark.parametrize("dtype", [torch.bfloat16, slow(torch.float16)])
@pytest.mark.parametrize(("name", "params"), [("sparsemax", [1.0]), ("entmax15", [1.0]), ("entmax", [1.0, 0.3])])
def test_half_precision_is_computed_in_float32(name: str, params: list[float], dtype: torch.dtype) -> None:
    """Weights and gradients are those of float32, rounded once (the interpreter cuts off where a GPU rounds)."""
    logits, upstream = (random_logits(3, 70, seed=seed, dtype=torch.float32).to(dtype) for seed in (0, 1))
    outcomes = []
    for kind in (dtype, torch.float32):
        leaf = logits.to(kind).requires_grad_()
        weights = weights_of(name, leaf, torch.tensor(params))
        # The gradient starts from the weights, which half precision has rounded.
        (gradient,) = torch.autograd.grad(weights, leaf, upstream.to(kind))
        assert weights.dtype == gradient.dtype == kind
        outcomes.append((weights.detach().float(), gradient.float()))
    (weights, gradient), (exact, exact_gradient) = outcomes
    torch.testing.assert_close(weights, exact, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).smallest_normal)
    rounding = 4 * torch.finfo(dtype).eps * float(upstream.abs().max())
    torch.testing.assert_close(gradient, exact_gradient, rtol=0, atol=rounding)


def test_values_per_head_and_strided_rows() -> None:
    made = abbe.normalizer("entmax:alpha=1.2,learn=true,heads=3")
    with torch.no_grad():
        for raw in made.parameters():
            raw += torch.linspace(-0.6, 0.6, 3).view_as(raw)
    rows = random_logits(2, 33, 3, 4, dtype=torch.float32).permute(0, 2, 3, 1)
    upstream = random_logits(2, 3, 4, 33, seed=1, dtype=torch.float32)
    got, want = derivatives(made, rows, upstream), derivatives(in_float64(made), rows.double(), upstream)
    torch.testing.assert_close(got[0], want[0], rtol=0, atol=8 * EPS)
    torch.testing.assert_close(got[1], want[1], rtol=0, atol=64 * EPS)
    torch.testing.assert_close(got[2][0], want[2][0], rtol=1e-5, atol=64 * EPS)


@pytest.mark.parametrize("name", ["sparsemax", slow("entmax15"), slow("entmax")])
@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_gradient_to_the_scale(name: str, scale: float) -> None:
    """At 0, too, where the gradient to the logits vanishes and that to the scale does not."""
    logits = random_logits(4, 40, dtype=torch.float32)
    upstream = random_logits(4, 40, seed=1, scale=1.0, dtype=torch.float32)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        params = torch.tensor([scale, 0.3][: 2 if name == "entmax" else 1], dtype=dtype, requires_grad=True)
        weights = weights_of(name, logits.to(dtype), params)
        gradients.append(torch.autograd.grad(weights, params, upstream.to(dtype))[0])
    torch.testing.assert_close(gradients[0].double(), gradients[1], rtol=1e-5, atol=1e-5)
    assert bool((gradients[1] != 0).any())


@pytest.mark.parametrize("spec", [SCALED[0], *map(slow, SCALED[1:]), "asentmax:alpha=1.5,delta=0,beta=0"])
def test_gaps_that_overflow(spec: str) -> None:
    """Gradients to the scale, and a scale of 0, meet a gap of -inf."""
    most = torch.finfo(torch.float32).max
    rows = torch.tensor([[most, -most, 0, 1], [most, most, -most, -torch.inf], [0.5, -most, 0, -most]])
    made, upstream = abbe.normalizer(spec), random_logits(3, 4, seed=1)
    got, want = derivatives(made, rows, upstream), derivatives(in_float64(made), rows.double(), upstream)
    for mine, exact in zip((*got[:2], *got[2]), (*want[:2], *want[2]), strict=True):
        torch.testing.assert_close(mine, exact, rtol=1e-5, atol=64 * EPS)


def test_no_rows() -> None:
    """As a compiled graph may call it; eager rows stay with the reference until there are enough of them."""
    empty, params = torch.empty(0, 5), torch.ones(1)
    assert _row_map.run_forward(empty, params, "sparsemax").shape == (0, 5)
    gradients = _row_map.run_backward(empty, empty, empty, params, "sparsemax", True)
    assert [tuple(values.shape) for values in gradients] == [(0, 5), (1,)]


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_second_derivatives(spec: str) -> None:
    """They go through the reference."""
    outcomes = []
    for dtype in (torch.float32, torch.float64):
        made = abbe.normalizer(spec).to(dtype)
        leaf = random_logits(3, 9, dtype=torch.float32).to(dtype).requires_grad_()
        (first,) = torch.autograd.grad(made(leaf).square().sum(), leaf, create_graph=True)
        outcomes.append(torch.autograd.grad(first.square().sum(), leaf)[0].double())
    torch.testing.assert_close(*outcomes, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("spec", SPECS)
def test_a_compiled_graph_calls_the_kernels(spec: str) -> None:
    made, logits = abbe.normalizer(spec), random_logits(4, 33, dtype=torch.float32)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    outcomes = []
    for call in (compiled, made):
        leaf = logits.clone().requires_grad_()
        weights = call(leaf)
        outcomes.append((weights, *torch.autograd.grad(weights.square().sum(), [leaf, *made.parameters()])))
    for mine, plain in zip(*outcomes, strict=True):
        torch.testing.assert_close(mine, plain, rtol=0, atol=4e-6)
