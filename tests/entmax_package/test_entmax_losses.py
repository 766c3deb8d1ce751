"""The losses of abbe.entmax: their definition, gradients p - y, never negative, reductions and ignored rows."""

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
FUNCTIONS = {
    "sparsemax": (entmax.sparsemax_loss, entmax.sparsemax),
    "sparsemax bisect": (entmax.sparsemax_bisect_loss, entmax.sparsemax_bisect),
    "entmax15": (entmax.entmax15_loss, entmax.entmax15),
    **{
        f"entmax {alpha}": (partial(entmax.entmax_bisect_loss, alpha=alpha), partial(entmax.entmax_bisect, alpha=alpha))
        for alpha in (0.4, 1.0, 1.3, 1.5, 2.0, 3.0)
    },
    **{
        f"normmax {alpha}": (
            partial(entmax.normmax_bisect_loss, alpha=alpha),
            partial(entmax.normmax_bisect, alpha=alpha),
        )
        for alpha in (0.7, 1.4, 2.0, 5.0)
    },
}
# One of each map, for the longer tests: the others are the same map by another name or at another alpha.
KINDS = ("sparsemax", "entmax15", "entmax 0.4", "entmax 1.3", "entmax 3.0", "normmax 2.0")
each_kind = pytest.mark.parametrize(
    ("loss", "weights"), [pair if name in KINDS else slow(*pair) for name, pair in FUNCTIONS.items()], ids=FUNCTIONS
)
each_loss = pytest.mark.parametrize(("loss", "weights"), FUNCTIONS.values(), ids=FUNCTIONS)
CLASSES = (
    entmax.SparsemaxLoss,
    entmax.SparsemaxBisectLoss,
    entmax.Entmax15Loss,
    entmax.EntmaxBisectLoss,
    entmax.NormmaxBisectLoss,
)
each_class = pytest.mark.parametrize("kind", CLASSES)


def data(rows: int = 4, classes: int = 6, seed: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    X = scale * torch.randn(rows, classes, generator=draw, dtype=torch.float64)
    return X, torch.randint(classes, (rows,), generator=draw)


def omega(name: str, p: Tensor) -> Tensor:
    """The regulariser, by its formula."""
    family, _, given = name.partition(" ")
    if family == "normmax":
        return (p ** float(given)).sum(-1) ** (1 / float(given)) if float(given) > 1 else torch.ones_like(p[..., 0])
    alpha = {"sparsemax": 2.0, "entmax15": 1.5}.get(family) or float(given)
    if alpha == 1:
        return torch.special.xlogy(p, p).sum(-1)
    return ((p**alpha).sum(-1) - 1) / (alpha * (alpha - 1))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_the_definition(name: str, scale: float) -> None:
    """Omega*(x) + Omega(y) - <x, y>: no point of the simplex gives more than the weights, so they give Omega*."""
    loss, weights = FUNCTIONS[name]
    X, target = data(scale=scale)
    y = torch.nn.functional.one_hot(target, 6).double()
    p = weights(X)
    conjugate = (X * p).sum(-1) - omega(name, p)
    wanted = conjugate + omega(name, y) - (X * y).sum(-1)
    torch.testing.assert_close(loss(X, target), wanted, rtol=1e-11, atol=1e-12 * max(1, scale))
    others = torch.distributions.Dirichlet(torch.ones(6, dtype=torch.float64)).sample((300,))
    if name != "normmax 0.7":  # its weights stand for any vertex
        assert bool(((X @ others.T) - omega(name, others) <= conjugate[:, None] + 1e-12 * max(1, scale)).all())


@each_loss
def test_the_gradient_is_p_minus_y(loss: object, weights: object) -> None:
    X, target = data()
    X.requires_grad_()
    (grad,) = torch.autograd.grad(loss(X, target).sum(), X)
    assert torch.equal(grad, weights(X.detach()) - torch.nn.functional.one_hot(target, 6))


@each_kind
def test_second_derivatives(loss: object, weights: object) -> None:
    X, target = data(2, 4, seed=3)
    X.requires_grad_()
    assert gradcheck(lambda x: loss(x, target), (X,))
    assert gradgradcheck(lambda x: loss(x, target), (X,), atol=1e-4)
    hessian = torch.autograd.functional.hessian(lambda x: loss(x, target[:1]).sum(), X[:1].detach())[0, :, 0]
    torch.testing.assert_close(hessian, torch.autograd.functional.jacobian(weights, X[0].detach()))


@pytest.mark.parametrize(
    ("loss", "alpha"),
    [
        *((entmax.entmax_bisect_loss, alpha) for alpha in (1.0, 3.0)),
        (entmax.normmax_bisect_loss, 2.0),
        *(slow(entmax.entmax_bisect_loss, alpha) for alpha in (0.4, 1.3, 1.5, 2.0)),
        *(slow(entmax.normmax_bisect_loss, alpha) for alpha in (1.3, 3.0)),
    ],
)
def test_alpha_has_a_gradient(loss: object, alpha: float) -> None:
    X, target = data(2, 4, seed=3)
    inputs = X.requires_grad_(), torch.full((2, 1), alpha, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, a: loss(x, target, a), inputs)
    assert gradgradcheck(lambda x, a: loss(x, target, a), inputs, atol=1e-4)


def test_alpha_one_is_cross_entropy() -> None:
    X, target = data(20, 9, scale=4.0)
    wanted = torch.nn.functional.cross_entropy(X, target, reduction="none")
    torch.testing.assert_close(entmax.entmax_bisect_loss(X, target, 1.0), wanted)
    torch.testing.assert_close(entmax.entmax_bisect_loss(X, target, torch.ones(20, 1)), wanted)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in ("entmax 1.0", "normmax 0.7")])
def test_the_package_agrees(name: str) -> None:
    X, target = data(20, 9)
    loss = FUNCTIONS[name][0]
    plain = getattr(loss, "func", loss)
    theirs = getattr(package, plain.__name__)(X, target, **getattr(loss, "keywords", {}))
    torch.testing.assert_close(loss(X, target), theirs, rtol=1e-8, atol=1e-9)


@each_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_never_negative_and_zero_by_a_margin(loss: object, weights: object, dtype: torch.dtype) -> None:
    """Rows whose target leads by a little, by much, and by 1e4: rounding leaves no loss below 0."""
    X, target = data(400, 7, scale=0.3)
    lead = torch.logspace(-4, 4, 400, dtype=torch.float64)[:, None]
    X = X.scatter_add(-1, target[:, None], lead).to(dtype)
    losses = loss(X, target)
    assert losses.dtype == dtype
    assert bool((losses >= 0).all())
    assert float(losses[-1]) <= 0.05  # heavy tails leave a little
    flat = loss(torch.zeros(3, 7, dtype=dtype), torch.tensor([0, 3, 6]))
    torch.testing.assert_close(flat, flat[:1].expand(3))


def test_a_margin_that_is_enough_costs_nothing() -> None:
    X = torch.tensor([[1.0, 0.0, -0.3], [2.0, 0.0, 0.0]])
    target = torch.tensor([0, 0])
    assert entmax.sparsemax_loss(X, target).tolist() == [0, 0]
    assert entmax.normmax_bisect_loss(X, target).tolist() == [0, 0]
    assert entmax.entmax15_loss(X, target)[1] == 0


@each_loss
def test_masked_classes(loss: object, weights: object) -> None:
    X, target = data(4, 6)
    target[:] = torch.tensor([0, 1, 0, 1])
    X[:, 3:] = -torch.inf
    X[2] = -torch.inf  # nothing to choose from
    X[3, 1] = -torch.inf  # the target is masked
    X.requires_grad_()
    losses = loss(X, target)
    torch.testing.assert_close(losses[:2], loss(X[:2, :3], target[:2]))
    assert losses[2:].tolist() == [0, torch.inf]
    (grad,) = torch.autograd.grad(losses[:3].sum(), X)
    assert bool(grad.isfinite().all())
    assert not bool(grad[2].any())


@each_class
@pytest.mark.parametrize("ignored", [-100, 2, -1])
def test_reductions_and_ignored_rows(kind: type, ignored: int) -> None:
    X, target = data(12, 5)
    target[[1, 4]] = ignored
    kept = target != ignored
    rows = kind(reduction="none")(X[kept], target[kept])
    every = kind(reduction="none", ignore_index=ignored)(X, target)
    assert torch.equal(every[kept], rows)
    assert not bool(every[~kept].any())
    torch.testing.assert_close(kind(reduction="sum", ignore_index=ignored)(X, target), rows.sum())
    for mean in ("mean", "elementwise_mean"):
        torch.testing.assert_close(kind(reduction=mean, ignore_index=ignored)(X, target), rows.mean())
    assert torch.equal(kind(ignore_index=ignored)(X, target), kind(ignore_index=target[1])(X, target))


@each_class
def test_nan_in_an_ignored_row_reaches_nothing(kind: type) -> None:
    X, target = data(4, 5)
    X[1], target[1] = torch.nan, -100
    X.requires_grad_()
    value = kind()(X, target)
    value.backward()
    assert bool(value.isfinite())
    assert bool(X.grad.isfinite().all())
    assert float(kind()(X[1:2], target[1:2]).detach()) == 0


def test_a_parameter_as_alpha_learns() -> None:
    alpha = torch.nn.Parameter(torch.tensor(1.3))
    loss = entmax.EntmaxBisectLoss(alpha=alpha)
    assert list(loss.parameters()) == [alpha]
    loss(*data()).backward()
    assert float(alpha.grad) != 0


@each_kind
def test_torch_func(loss: object, weights: object) -> None:
    X, target = data(3, 5)
    function = partial(loss, target=target[0])
    hessians = torch.func.vmap(torch.func.hessian(function))(X)
    for row, hessian in zip(X, hessians, strict=True):
        torch.testing.assert_close(torch.autograd.functional.jacobian(weights, row), hessian, rtol=1e-6, atol=1e-9)
    grads = torch.func.vmap(torch.func.grad(function))(X)
    torch.testing.assert_close(grads, weights(X) - torch.nn.functional.one_hot(target[0], 5))


@each_kind
def test_the_kernels_are_used_and_agree(loss: object, weights: object) -> None:
    """65,536 entries and more, leading dimensions, masked classes and rows; double precision is the oracle."""
    X, target = data(600, 128, scale=2.0)
    X[::3, 5:90] = -torch.inf
    X[7], X[11, 3] = -torch.inf, torch.nan
    X, target = X.float().view(6, 100, 128), target.view(6, 100).int()
    one, two = X.clone().requires_grad_(), X.double().requires_grad_()
    ours, exact = loss(one, target), loss(two, target)
    size = exact.detach().abs().nan_to_num(posinf=1.0).clamp(min=1)
    torch.testing.assert_close(ours.double() / size, exact / size, rtol=0, atol=3e-6, equal_nan=True)
    assert float(ours.detach()[0, 7]) == 0
    assert bool((ours.detach().nan_to_num() >= 0).all())
    for losses, rows in ((ours, one), (exact, two)):
        losses.masked_fill(losses.isinf(), 0).sum().backward()
        assert not bool(rows.grad[0, 7].any())
    torch.testing.assert_close(one.grad.double(), two.grad, rtol=0, atol=4e-6, equal_nan=True)


@pytest.mark.slow
@each_class
def test_a_compiled_loss(kind: type) -> None:
    torch._dynamo.reset()
    X, target = data(4, 6)
    target[2] = -100
    one, two = X.clone().requires_grad_(), X.clone().requires_grad_()
    torch.compile(kind(), fullgraph=True, backend="aot_eager")(one, target).backward()
    kind()(two, target).backward()
    torch.testing.assert_close(one.grad, two.grad)


@pytest.mark.parametrize(
    ("X", "target", "says"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 3]), r"target must lie in \[0, 3\), got 0 to 3"),
        (torch.zeros(2, 3), torch.tensor([0, -1]), r"target must lie in \[0, 3\), got -1 to 0"),
        (torch.zeros(2, 3), torch.tensor([0]), r"a class for each row, shape \(2,\), got \(1,\)"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([0, 0]), "X must be a floating-point tensor"),
    ],
)
def test_mistakes_are_said_in_one_line(X: Tensor, target: Tensor, says: str) -> None:
    with pytest.raises(abbe.AbbeError, match=says):
        entmax.sparsemax_loss(X, target)
    with pytest.raises(abbe.AbbeError, match="reduction must be one of"):
        entmax.SparsemaxLoss(reduction="average")
