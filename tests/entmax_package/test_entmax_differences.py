"""The table of docs/how-to/entmax.md: what the package does differently, each line beside what abbe.entmax does."""

from __future__ import annotations

import inspect
import pickle
from functools import partial

import pytest
import torch
from package_oracles import entmax_row
from torch import Tensor
from torch.autograd import gradgradcheck

import abbe
from abbe import entmax
from abbe.entmax import activations

package = pytest.importorskip("entmax")
X = torch.tensor([[0.31, -0.44, 5.93, 0.17], [1.13, 0.87, -5.0, 1.41]], dtype=torch.float64)
TARGET = torch.tensor([0, 1])


def fails(call: object, *given: object) -> bool:
    try:
        call(*given)
    except (RuntimeError, AssertionError, AttributeError, IndexError):
        return True
    return False


def test_alpha_one() -> None:
    torch.testing.assert_close(package.entmax_bisect(X, 1.0), torch.full_like(X, 0.25))
    assert torch.equal(entmax.entmax_bisect(X, 1.0), torch.softmax(X, -1))


def test_alpha_well_above_two() -> None:
    rows = torch.randn(40, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    off = (package.entmax_bisect(rows, 20.0, n_iter=100) - entmax.entmax_bisect(rows, 20.0)).abs().amax(-1)
    worst = int(off.argmax())
    assert float(off.max()) > 0.1
    torch.testing.assert_close(entmax.entmax_bisect(rows[worst], 20.0), entmax_row(rows[worst], 20.0))


@pytest.mark.parametrize("name", ["entmax15", "entmax_bisect"])
def test_second_derivatives_of_maps_with_zero_weights(name: str) -> None:
    leaf = X.clone().requires_grad_()
    assert not gradgradcheck(getattr(package, name), (leaf,), raise_exception=False)
    assert gradgradcheck(getattr(entmax, name), (leaf,))


def test_second_derivatives_with_respect_to_alpha() -> None:
    inputs = X[1:, :2].clone().requires_grad_(), torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert not gradgradcheck(package.entmax_bisect, inputs, raise_exception=False)
    assert gradgradcheck(entmax.entmax_bisect, inputs)


@pytest.mark.parametrize("name", ["sparsemax_loss", "entmax15_loss", "entmax_bisect_loss", "normmax_bisect_loss"])
def test_second_derivatives_of_losses(name: str) -> None:
    leaf = X[1:, [0, 1, 3]].clone().requires_grad_()
    theirs, ours = (partial(getattr(module, name), target=TARGET[1:]) for module in (package, entmax))
    assert not gradgradcheck(theirs, (leaf,), raise_exception=False)
    assert gradgradcheck(ours, (leaf,))


@pytest.mark.parametrize("spoiled", [-torch.inf, torch.nan])
@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "entmax_bisect", "normmax_bisect", "budget_bisect"])
def test_rows_without_entries_or_with_nan(name: str, spoiled: float) -> None:
    rows = X.clone()
    rows[0] = spoiled
    theirs = getattr(package, name)
    assert fails(theirs, rows) == (name in ("sparsemax", "entmax15"))
    if name.endswith("bisect"):
        assert bool(theirs(rows)[0].isnan().all())
    ours = getattr(entmax, name)(rows)
    torch.testing.assert_close(
        ours[0], torch.full_like(X[0], 0.0 if spoiled == -torch.inf else spoiled), equal_nan=True
    )
    torch.testing.assert_close(ours[1], getattr(entmax, name)(X)[1])


@pytest.mark.parametrize(
    ("name", "given"), [("normmax_bisect", ()), ("budget_bisect", ()), ("entmax_bisect_loss", (TARGET,))]
)
def test_parameters_without_a_gradient(name: str, given: tuple[Tensor, ...]) -> None:
    value = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    rows = X.clone().requires_grad_()
    theirs, ours = (getattr(module, name)(rows, *given, value).square().sum() for module in (package, entmax))
    assert fails(partial(torch.autograd.grad, retain_graph=True), theirs, value)
    (grad,) = torch.autograd.grad(ours, value)
    assert float(grad) != 0


def test_a_parameter_in_a_module_and_k_with_a_negative_dimension() -> None:
    alpha = torch.nn.Parameter(torch.tensor(1.3))
    assert fails(package.EntmaxBisect, alpha)
    assert list(entmax.EntmaxBisect(alpha).parameters()) == [alpha]
    rows = torch.zeros(3, 4, 5)
    assert fails(partial(package.entmax15, dim=-2, k=2), rows)
    assert entmax.entmax15(rows, dim=-2, k=2).shape == rows.shape


def test_half_precision() -> None:
    """Long rows in float16: the sums of the package lose digits."""
    rows = torch.randn(50, 400, generator=torch.Generator().manual_seed(0)).half()
    exact = entmax.entmax15(rows.double())
    ours, theirs = (module.entmax15(rows).double() for module in (entmax, package))
    assert float((ours - exact).abs().max()) < 0.3 * float((theirs - exact).abs().max())


def test_masked_classes_of_a_loss() -> None:
    rows = X.clone()
    rows[0, 1] = -torch.inf
    assert bool(package.entmax15_loss(rows, TARGET)[0].isnan())
    torch.testing.assert_close(entmax.entmax15_loss(rows, TARGET)[0], entmax.entmax15_loss(X[:, [0, 2, 3]], TARGET)[0])
    absent = entmax.entmax15_loss(rows, torch.tensor([1, 1]))
    assert torch.equal(absent.isinf(), torch.tensor([True, False]))


def test_rounding_of_a_loss() -> None:
    draw = torch.Generator().manual_seed(0)
    target = torch.randint(7, (4000,), generator=draw)
    rows = 0.3 * torch.randn(4000, 7, generator=draw) + 100
    rows = rows.scatter_add(-1, target[:, None], torch.logspace(-4, 4, 4000)[:, None])
    assert float(package.entmax15_loss(rows, target).min()) < 0
    assert float(entmax.entmax15_loss(rows, target).min()) >= 0


def test_shapes_targets_and_reductions_of_losses() -> None:
    rows, target = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)
    assert fails(package.entmax15_loss, rows, target)
    assert entmax.entmax15_loss(rows, target).shape == (2, 3)
    ignored = torch.tensor([0, -100])
    assert fails(package.Entmax15Loss(), X, ignored)
    assert bool(entmax.Entmax15Loss()(X, ignored).isfinite())
    both = torch.tensor([0, 0])
    assert bool(package.Entmax15Loss(ignore_index=0)(X, both).isnan())
    assert float(entmax.Entmax15Loss(ignore_index=0)(X, both)) == 0
    assert fails(partial(package.Entmax15Loss, reduction="mean"))
    assert entmax.Entmax15Loss(reduction="mean")(X, TARGET) == entmax.Entmax15Loss()(X, TARGET)
    alphas = torch.tensor([[1.3], [1.7]], dtype=torch.float64)
    assert package.entmax_bisect_loss(X, TARGET, alphas).shape != (2,)
    each = entmax.entmax_bisect_loss(X, TARGET, alphas)
    torch.testing.assert_close(each[1], entmax.entmax_bisect_loss(X[1:], TARGET[1:], 1.7)[0])


def test_torch_func() -> None:
    assert fails(torch.func.jacrev(package.entmax15), X)
    assert torch.func.jacrev(entmax.entmax15)(X).shape == (2, 4, 2, 4)


# -- Modules, names and signatures ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", [name for name in entmax.__all__ if hasattr(package, name)])
def test_functions_and_modules_take_the_same_arguments(name: str) -> None:
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
