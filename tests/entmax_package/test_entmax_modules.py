"""The modules of abbe.entmax, its names and signatures beside the package's, and mistakes."""

from __future__ import annotations

import inspect
import pickle

import pytest
import torch

import abbe
from abbe import entmax
from abbe.entmax import activations

package = pytest.importorskip("entmax")
FUNCTIONS = ("sparsemax", "entmax15", "entmax_bisect", "sparsemax_bisect", "normmax_bisect", "budget_bisect")
MODULES = ("Sparsemax", "Entmax15", "EntmaxBisect", "SparsemaxBisect", "NormmaxBisect", "BudgetBisect")


def test_every_public_name_of_the_package_is_there() -> None:
    public = {name for name, value in vars(package).items() if callable(value)}
    assert public <= set(entmax.__all__)
    for module in ("activations", "losses", "root_finding"):
        theirs = vars(__import__(f"entmax.{module}", fromlist=["x"]))
        ours = vars(__import__(f"abbe.entmax.{module}", fromlist=["x"]))
        assert {name for name in theirs if name in public and theirs[name].__module__ == f"entmax.{module}"} <= set(
            ours
        )


@pytest.mark.parametrize("name", [*FUNCTIONS, *(n for n in entmax.__all__ if n.endswith("_loss"))])
def test_functions_take_the_same_arguments(name: str) -> None:
    theirs, ours = (inspect.signature(getattr(module, name)).parameters for module in (package, entmax))
    shared = [(p.name, p.default) for p in ours.values() if p.name != "return_support_size"]
    assert shared == [(p.name, p.default) for p in theirs.values()]


@pytest.mark.parametrize(("name", "function"), list(zip(MODULES, FUNCTIONS, strict=True)))
@pytest.mark.parametrize("dim", [0, 1])
def test_modules_call_their_function(name: str, function: str, dim: int) -> None:
    X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    made = getattr(entmax, name)(dim=dim)
    assert torch.equal(made(X), getattr(entmax, function)(X, dim=dim))
    assert torch.equal(pickle.loads(pickle.dumps(made))(X), made(X))
    theirs = inspect.signature(getattr(package, name).__init__).parameters
    ours = inspect.signature(type(made).__init__).parameters
    shared = [(p.name, p.default) for p in ours.values() if p.name != "return_support_size"]
    assert shared == [(p.name, p.default) for p in theirs.values()]


def test_a_module_returns_the_support_size() -> None:
    X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    for kind in (entmax.Sparsemax, entmax.Entmax15):
        weights, size = kind(dim=0, return_support_size=True)(X)
        assert torch.equal(size, (weights > 0).sum(0, keepdim=True))


def test_a_parameter_is_learned() -> None:
    X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    for kind, start in ((entmax.EntmaxBisect, 1.3), (entmax.NormmaxBisect, 2.0), (entmax.BudgetBisect, 1.7)):
        made = kind(torch.nn.Parameter(torch.tensor(start)))
        (learned,) = made.parameters()
        made(X).square().sum().backward()
        assert float(learned.grad.abs()) > 0


@pytest.mark.parametrize("factor", [1e-5, 0.5, 1e4])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_thresholds(factor: float, dim: int) -> None:
    X = factor * torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tau, size = activations._sparsemax_threshold_and_support(X, dim, k=2)
    torch.testing.assert_close((X - tau).clamp(min=0), entmax.sparsemax(X, dim), rtol=0, atol=1e-11)
    assert torch.equal(size, (entmax.sparsemax(X, dim) > 0).sum(dim, keepdim=True))
    tau, size = activations._entmax_threshold_and_support(X / 2, dim, k=2)
    torch.testing.assert_close((X / 2 - tau).clamp(min=0) ** 2, entmax.entmax15(X, dim), rtol=0, atol=1e-11)
    assert torch.equal(size, (entmax.entmax15(X, dim) > 0).sum(dim, keepdim=True))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda X: entmax.entmax_bisect(X, 0.0), "alpha must be a number > 0, got 0.0"),
        (lambda X: entmax.entmax_bisect(X, float("nan")), "alpha must be a number > 0, got nan"),
        (lambda X: entmax.entmax_bisect(X, torch.tensor([[1.5], [-1.0]])), "alpha must be > 0 everywhere"),
        (lambda X: entmax.entmax_bisect(X, torch.ones(3, 1)), r"shape \(3, 1\) does not broadcast to \(2, 1\)"),
        (lambda X: entmax.normmax_bisect(X, -1), "alpha must be a number > 0, got -1"),
        (lambda X: entmax.budget_bisect(X, -0.5), "budget must be a number >= 0, got -0.5"),
        (lambda X: entmax.sparsemax(X, dim=2), r"dim must name a dimension of X that is not empty, got 2 for \(2, 4\)"),
        (lambda X: entmax.sparsemax(X[:, :0]), r"not empty, got -1 for \(2, 0\)"),
        (lambda X: entmax.entmax15(X.long()), "X must be a floating-point tensor, got torch.int64"),
        (lambda X: entmax.entmax15([1.0]), "X must be a floating-point tensor, got list"),
    ],
)
def test_mistakes_are_said_in_one_line(call: object, says: str) -> None:
    with pytest.raises(abbe.AbbeError, match=says):
        call(torch.zeros(2, 4))
