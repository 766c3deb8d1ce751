"""The maps of abbe.entmax against exact arithmetic and, where it is right, against the package."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from normalizer_cases import slow
from package_oracles import budget_row, entmax_row, normmax_row
from torch import Tensor

import abbe
from abbe import entmax

package = pytest.importorskip("entmax")
ALPHAS = (0.05, 0.9, 1.0, 1.5, 2.0, 3.0, 7.0, *map(slow, (0.2, 0.5, 1.2, 1.75, 2.25, 20.0)))


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def hostile_rows() -> Tensor:
    """Ties at the top, ties at the edge of the support, all equal, levels, a far leader, 1e4; all are float32, too."""
    rows = drawn(8, 6, seed=1)
    rows[0, :3] = rows[0].max() + 0.25
    rows[1] = torch.tensor([1.0, 0.0, 0.0, 0.5, 0.5, -0.5])
    rows[2] = 0.7
    rows[3] = torch.round(4 * rows[3]) / 4
    rows[4, 2] += 50
    rows[5] *= 1e4
    rows[6] *= 1e-3
    return rows.float().double()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_entmax_of_any_alpha_is_exact(alpha: float) -> None:
    rows = hostile_rows()
    wanted = torch.stack([entmax_row(row, alpha) for row in rows])
    torch.testing.assert_close(entmax.entmax_bisect(rows, alpha), wanted, rtol=1e-9, atol=4e-15)
    per_row = entmax.entmax_bisect(rows, torch.full((8, 1), alpha, dtype=torch.float64))
    torch.testing.assert_close(per_row, wanted, rtol=1e-9, atol=4e-15)
    torch.testing.assert_close(entmax.entmax_bisect(rows.float(), alpha).double(), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.01, 1.5, 2.0, 1000.0, *map(slow, (1.2, 3.0, 10.0))])
def test_normmax_is_exact(alpha: float) -> None:
    rows = hostile_rows()
    wanted = torch.stack([normmax_row(row, alpha) for row in rows])
    torch.testing.assert_close(entmax.normmax_bisect(rows, alpha), wanted, rtol=1e-7, atol=1e-12)
    torch.testing.assert_close(
        entmax.normmax_bisect(rows, torch.full((8, 1), alpha, dtype=torch.float64)), wanted, rtol=1e-7, atol=1e-12
    )


@pytest.mark.parametrize("alpha", [0.4, 1.0, 1 + 1e-9])
def test_normmax_up_to_one_is_argmax(alpha: float) -> None:
    """A norm of order 1 or less is smallest at the vertices; equal entries share the weight."""
    rows = torch.tensor([[0.1, 0.3, -2.0], [1.0, 1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    weights = entmax.normmax_bisect(rows, alpha)
    torch.testing.assert_close(weights, torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]], dtype=torch.float64))
    weights.square().sum().backward()
    assert not bool(rows.grad.any())
    nearly = entmax.normmax_bisect(rows.detach(), 1.001)
    torch.testing.assert_close(weights.detach(), nearly)


@pytest.mark.parametrize("budget", [0.0, 0.5, 1.0, 2.0, 2.75, 5.0, 6.0, 9.0])
def test_budget_is_exact(budget: float) -> None:
    for factor in (1.0, 3.0, 0.1):
        rows = factor * hostile_rows()
        weights = entmax.budget_bisect(rows, budget)
        torch.testing.assert_close(weights, torch.stack([budget_row(row, budget) for row in rows]), rtol=0, atol=1e-11)
        torch.testing.assert_close(weights.sum(-1), torch.full((8,), min(budget, 6.0), dtype=torch.float64))


def test_budget_of_logits_so_large_that_adding_one_changes_nothing() -> None:
    row = torch.tensor([5e19, 3e19, 3e19, -1e19])
    assert entmax.budget_bisect(row, 1.0).tolist() == [1, 0, 0, 0]
    assert entmax.budget_bisect(row, 2.0).tolist() == [1, 0.5, 0.5, 0]
    assert entmax.budget_bisect(row, 3.25).tolist() == [1, 1, 1, 0.25]


@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=7), st.floats(0, 8))
def test_budget_of_any_row(values: list[float], budget: float) -> None:
    row = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(entmax.budget_bisect(row, budget), budget_row(row, budget), rtol=0, atol=1e-12)


@given(st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=6), st.floats(0.02, 9), st.floats(-1e3, 1e3))
def test_laws_of_any_row(values: list[float], alpha: float, shift: float) -> None:
    """On the simplex, larger entries have larger weights, and a constant changes nothing."""
    row = torch.tensor(values, dtype=torch.float64)
    for function in (entmax.entmax_bisect, entmax.normmax_bisect):
        weights = function(row, alpha)
        assert bool((weights >= 0).all())
        assert abs(float(weights.sum()) - 1) <= 1e-14
        order = row.argsort()
        assert bool((weights[order].diff() >= -1e-15).all())
        if function is entmax.entmax_bisect:  # normmax of a high alpha is infinitely steep
            torch.testing.assert_close(function(row + shift, alpha), weights, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_any_dimension(dim: int) -> None:
    X = drawn(3, 4, 5, seed=4)
    shape = list(X.shape)
    shape[dim] = 1
    alphas = 0.3 + 2.5 * torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for ours, theirs in (
        (entmax.sparsemax(X, dim), package.sparsemax(X, dim=dim % 3)),
        (entmax.entmax15(X, dim), package.entmax15(X, dim=dim % 3)),
        (entmax.entmax_bisect(X, alphas, dim), package.entmax_bisect(X, alphas, dim, n_iter=90)),
        (entmax.normmax_bisect(X, 1 + alphas, dim), package.normmax_bisect(X, 1 + alphas, dim, n_iter=90)),
        (entmax.budget_bisect(X, alphas, dim), package.budget_bisect(X, alphas, dim, n_iter=90)),
        (entmax.sparsemax_bisect(X, dim), package.sparsemax(X, dim=dim % 3)),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def test_alpha_broadcasts_and_rows_do_not_mix() -> None:
    X = drawn(4, 3, 5)
    one_each = torch.tensor([0.5, 1.0, 2.5], dtype=torch.float64).view(3, 1)
    together = entmax.entmax_bisect(X, one_each)
    for row, alpha in enumerate((0.5, 1.0, 2.5)):
        torch.testing.assert_close(together[:, row], entmax.entmax_bisect(X[:, row], alpha), rtol=0, atol=1e-14)
    for alpha in (torch.tensor(1.7), torch.tensor([1.7]), 1.7):
        torch.testing.assert_close(entmax.entmax_bisect(X, alpha), entmax.entmax_bisect(X, 1.7), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("alpha", [1, 1.0, torch.tensor(1.0), torch.ones(4, 1)], ids=str)
def test_alpha_one_is_softmax(alpha: float | Tensor) -> None:
    X = drawn(4, 9, scale=5.0)
    tolerance = 0 if not isinstance(alpha, Tensor) or alpha.numel() == 1 else 1e-15
    torch.testing.assert_close(entmax.entmax_bisect(X, alpha), torch.softmax(X, -1), rtol=0, atol=tolerance)


def test_arguments_that_change_nothing() -> None:
    X = drawn(4, 9)
    for function in (entmax.sparsemax, entmax.entmax15):
        assert all(torch.equal(function(X, k=k), function(X)) for k in (1, 3, 9, 100))
    for function in (entmax.entmax_bisect, entmax.sparsemax_bisect):
        assert torch.equal(function(X, n_iter=1, ensure_sum_one=False), function(X))
    for function in (entmax.normmax_bisect, entmax.budget_bisect):
        assert torch.equal(function(X, n_iter=1), function(X))


@pytest.mark.parametrize("dim", [0, 1])
def test_support_sizes(dim: int) -> None:
    X = drawn(7, 9)
    for function, module in ((entmax.sparsemax, entmax.Sparsemax), (entmax.entmax15, entmax.Entmax15)):
        weights, size = function(X, dim, return_support_size=True)
        assert torch.equal(module(dim, return_support_size=True)(X)[1], size)
        assert torch.equal(weights, function(X, dim))
        assert torch.equal(size, (weights > 0).sum(dim, keepdim=True))
        assert size.dtype == torch.int64


MAPS = {
    "sparsemax": entmax.sparsemax,
    "entmax15": entmax.entmax15,
    "softmax": lambda X: entmax.entmax_bisect(X, 1.0),
    "entmax-0.5": lambda X: entmax.entmax_bisect(X, 0.5),
    "entmax-1.3": lambda X: entmax.entmax_bisect(X, 1.3),
    "entmax-3": lambda X: entmax.entmax_bisect(X, 3.0),
    "entmax of rows": lambda X: entmax.entmax_bisect(X, torch.linspace(0.3, 4, len(X))[:, None]),
    "normmax": entmax.normmax_bisect,
    "budget": entmax.budget_bisect,
}
each_map = pytest.mark.parametrize("function", MAPS.values(), ids=MAPS)


@each_map
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masked_entries_are_absent(function: object, dtype: torch.dtype) -> None:
    X = drawn(5, 8).to(dtype)
    mask = torch.rand(8, generator=torch.Generator().manual_seed(2)) < 0.5
    weights = function(X.masked_fill(mask, -torch.inf))
    assert not bool(weights[:, mask].any())
    torch.testing.assert_close(weights[:, ~mask], function(X[:, ~mask]))


@each_map
def test_rows_that_are_all_masked_or_hold_nan(function: object) -> None:
    X = drawn(5, 8)
    X[1], X[3, 2] = -torch.inf, torch.nan
    X.requires_grad_()
    weights = function(X)
    (grad,) = torch.autograd.grad(weights.square().sum(), X)
    for rows in (weights, grad):
        assert not bool(rows[1].any())
        assert bool(rows[3].isnan().all())
        assert bool(rows[[0, 2, 4]].isfinite().all())


@each_map
def test_one_entry_and_half_precision(function: object) -> None:
    assert function(torch.tensor([[3.0], [-1e4]])).flatten().tolist() == [1, 1]
    X = drawn(6, 40, scale=3.0)
    for dtype in (torch.float16, torch.bfloat16):
        weights = function(X.to(dtype))
        assert weights.dtype == dtype
        torch.testing.assert_close(weights, function(X.to(dtype).float()).to(dtype))


@each_map
def test_the_kernels_are_used_and_agree(function: object) -> None:
    """65,536 entries and more; the same rows in double precision are the oracle."""
    X = drawn(600, 128, scale=2.0).float()
    torch.testing.assert_close(function(X).double(), function(X.double()), rtol=0, atol=4e-6)


def test_normmax_and_budget_are_normalizers_too() -> None:
    X = drawn(4, 9)
    torch.testing.assert_close(abbe.normalizer("normmax:alpha=3")(X), entmax.normmax_bisect(X, 3), rtol=0, atol=0)
    torch.testing.assert_close(abbe.normalizer("budget:budget=2.5")(X), entmax.budget_bisect(X, 2.5), rtol=0, atol=0)
    torch.testing.assert_close(abbe.normalizer("k-subsets:budget=1")(X), entmax.sparsemax(X), rtol=0, atol=1e-15)
