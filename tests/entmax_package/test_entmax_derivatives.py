"""First and second derivatives of abbe.entmax, with respect to X and to the parameters, and where torch takes them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from normalizer_cases import slow
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import abbe
from abbe import entmax

package = pytest.importorskip("entmax")
# No entry is at a kink: every gap is about a tenth, and no threshold comes near an entry.
X = torch.tensor([[0.31, -0.44, 0.93, 0.17], [1.13, 0.87, 0.22, 1.41]], dtype=torch.float64)


def number(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(-1, 1).requires_grad_()


def leaf(rows: Tensor = X) -> Tensor:
    return rows.clone().requires_grad_()


@pytest.mark.parametrize("function", [entmax.sparsemax, entmax.entmax15, entmax.sparsemax_bisect, entmax.budget_bisect])
def test_fixed_maps(function: object) -> None:
    assert gradcheck(function, (leaf(),))
    assert gradgradcheck(function, (leaf(),))


@pytest.mark.parametrize(
    "alpha", [(0.6, 3.0), 1.0, *map(slow, (0.2, 0.75, 2.25, 1.3, 1.5, 2.0, 4.0, (1.2, 1.9)))], ids=str
)
def test_entmax_with_its_alpha(alpha: float | tuple[float, float]) -> None:
    """Also at 1, where the package divides by zero, and at 1.5 and 2, where closed forms serve a fixed alpha."""
    inputs = leaf(), number(*(alpha if isinstance(alpha, tuple) else (alpha,)))
    assert gradcheck(entmax.entmax_bisect, inputs)
    assert gradgradcheck(entmax.entmax_bisect, inputs, atol=1e-4)


@pytest.mark.parametrize("alpha", [1.5, *map(slow, (1.2, 2.0, 3.0, 8.0))])
def test_normmax_with_its_alpha(alpha: float) -> None:
    inputs = leaf(), number(alpha)
    assert gradcheck(entmax.normmax_bisect, inputs)
    assert gradgradcheck(entmax.normmax_bisect, inputs, atol=1e-4)


@pytest.mark.parametrize("budget", [0.7, 1.0, 2.2, 3.4])
def test_budget_with_its_budget(budget: float) -> None:
    assert gradcheck(entmax.budget_bisect, (leaf(), number(budget)))


@pytest.mark.parametrize("dim", [0, slow(1), slow(2)])
def test_along_any_dimension(dim: int) -> None:
    rows = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64).requires_grad_()
    shape = [2, 3, 4]
    shape[dim] = 1
    alphas = (0.4 + 2 * torch.rand(shape, generator=torch.Generator().manual_seed(6)).double()).requires_grad_()
    assert gradcheck(partial(entmax.entmax_bisect, dim=dim), (rows, alphas))


@pytest.mark.parametrize("alpha", [0.3, 1.25, 1.75, 2.5])
def test_first_derivatives_agree_with_the_package(alpha: float) -> None:
    upstream = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grads = []
    for function in (entmax.entmax_bisect, partial(package.entmax_bisect, n_iter=100)):
        inputs = leaf(), number(alpha, alpha)
        grads.append(torch.autograd.grad(function(*inputs), inputs, upstream))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("spec", ["normmax:alpha=1.4", "normmax:alpha=2", "normmax:alpha=3.5", "budget:budget=2"])
def test_jacobians_of_the_normalizers(spec: str) -> None:
    made = abbe.normalizer(spec)
    for row, jacobian in zip(X, made.jacobian(X), strict=True):
        torch.testing.assert_close(torch.autograd.functional.jacobian(made, row), jacobian, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_the_bound_of_normmax_is_of_the_right_size(alpha: float) -> None:
    """Reached at alpha = 2, near a vertex with all keys in the support; below, a fifth of it and more is reached."""
    made = abbe.normalizer("normmax", alpha=alpha)
    for keys in (2, 5, 16):
        gaps = 1 - torch.logspace(-9, 0, 600, dtype=torch.float64)
        rows = torch.cat([gaps[:, None], torch.zeros(600, keys - 1, dtype=torch.float64)], -1)
        best = float(torch.linalg.matrix_norm(made.jacobian(rows), ord=2).max())
        assert (0.98 if alpha == 2 else 0.2) * made.lipschitz(keys) <= best <= made.lipschitz(keys)


@pytest.mark.parametrize("alpha", [3.0, slow(0.6), slow(1.4)])
def test_torch_func(alpha: float) -> None:
    function = partial(entmax.entmax_bisect, alpha=alpha)
    jacobians = torch.func.vmap(torch.func.jacrev(function))(X)
    for row, jacobian in zip(X, jacobians, strict=True):
        torch.testing.assert_close(torch.autograd.functional.jacobian(function, row), jacobian)
    hessian = torch.func.hessian(lambda x: function(x).square().sum())(X[0])
    torch.testing.assert_close(torch.autograd.functional.hessian(lambda x: function(x).square().sum(), X[0]), hessian)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.6, 3.0])
def test_a_compiled_call(alpha: float) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(partial(entmax.entmax_bisect, alpha=alpha), fullgraph=True, backend="aot_eager")
    one, two = leaf(), leaf()
    compiled(one).square().sum().backward()
    entmax.entmax_bisect(two, alpha).square().sum().backward()
    torch.testing.assert_close(one.grad, two.grad)
