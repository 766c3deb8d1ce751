"""The maps of the entmax package as functions and modules: along any dimension, with a parameter per row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, overload

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from ..normalizers import budget_weights, entmax_weights, normmax_weights

_HALF = (torch.float16, torch.bfloat16)


def working(owner: str, X: Tensor) -> Tensor:
    """X in the precision of the computation: float16 and bfloat16 become float32."""
    if not isinstance(X, Tensor) or not X.is_floating_point():
        kind = X.dtype if isinstance(X, Tensor) else type(X).__name__
        raise AbbeError(f"{owner}: X must be a floating-point tensor, got {kind}")
    return X.float() if X.dtype in _HALF else X


def along(
    owner: str, weights: Callable[[Tensor, float | Tensor], Tensor], X: Tensor, value: float | Tensor, dim: int
) -> Tensor:
    """weights(rows, value) for the rows of X along `dim`; the value is a number, or one per row, of size 1 at `dim`."""
    work = working(owner, X)
    if not -X.ndim <= dim < X.ndim or X.shape[dim] == 0:
        raise AbbeError(f"{owner}: dim must name a dimension of X that is not empty, got {dim} for {tuple(X.shape)}")
    if isinstance(value, Tensor) and value.ndim > 0:
        value = one_per_row(owner, value, X, dim)
    rows = weights(work.movedim(dim, -1), value)
    return rows.movedim(-1, dim).to(X.dtype)


def one_per_row(owner: str, value: Tensor, X: Tensor, dim: int) -> Tensor:
    """A parameter that broadcasts to X with size 1 at `dim`, as (..., 1) for the rows along `dim`."""
    shape = list(X.shape)
    shape[dim] = 1
    try:
        return value.broadcast_to(shape).movedim(dim, -1)
    except RuntimeError:
        raise AbbeError(
            f"{owner}: a parameter of shape {tuple(value.shape)} does not broadcast to {tuple(shape)}, one per row of X"
        ) from None


@overload
def sparsemax(X: Tensor, dim: int = ..., k: int | None = ..., return_support_size: Literal[False] = ...) -> Tensor: ...
@overload
def sparsemax(X: Tensor, dim: int = ..., k: int | None = ..., *, return_support_size: bool) -> Output: ...
def sparsemax(X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> Output:
    """The nearest point of the simplex to each row of X along `dim`, arXiv 1602.02068.

    Large differences in a row give few positive weights (one if the top leads by 1 or more), small ones give many.

    Args:
        X: floating tensor of any shape.
        dim: the dimension along which the weights sum to 1.
        k: accepted and without effect: no sort is needed.
        return_support_size: also return the number of positive weights, of size 1 at `dim`.

    Returns:
        Weights of the shape and dtype of X; with `return_support_size` a pair.

    Examples:
        >>> [round(p, 3) for p in abbe.entmax.sparsemax(torch.tensor([1.0, 0.5, -1.0])).tolist()]
        [0.75, 0.25, 0.0]
    """
    return _with_support(along("sparsemax", entmax_weights, X, 2.0, dim), dim, return_support_size)


@overload
def entmax15(X: Tensor, dim: int = ..., k: int | None = ..., return_support_size: Literal[False] = ...) -> Tensor: ...
@overload
def entmax15(X: Tensor, dim: int = ..., k: int | None = ..., *, return_support_size: bool) -> Output: ...
def entmax15(X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> Output:
    """1.5-entmax of each row of X along `dim`, between softmax and sparsemax, arXiv 1905.05702.

    Large differences in a row give few positive weights (one if the top leads by 2 or more), small ones give many.

    Args:
        X, dim, k, return_support_size: as for `sparsemax`.

    Returns:
        Weights of the shape and dtype of X; with `return_support_size` a pair.

    Examples:
        >>> weights, size = abbe.entmax.entmax15(torch.tensor([1.0, 0.5, -1.0]), return_support_size=True)
        >>> [round(p, 3) for p in weights.tolist()], int(size)
        ([0.674, 0.326, 0.0], 2)
    """
    return _with_support(along("entmax15", entmax_weights, X, 1.5, dim), dim, return_support_size)


Output = Tensor | tuple[Tensor, Tensor]


def _with_support(weights: Tensor, dim: int, wanted: bool) -> Output:
    return (weights, (weights > 0).sum(dim, keepdim=True)) if wanted else weights


class _Map(nn.Module, ABC):
    def __init__(self, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> None:
        super().__init__()
        self.dim, self.k, self.return_support_size = dim, k, return_support_size

    def forward(self, X: Tensor) -> Output:
        """The weights of X.

        Args:
            X: floating tensor of any shape.
        """
        return _with_support(self._weights(X), self.dim, self.return_support_size)

    @abstractmethod
    def _weights(self, X: Tensor) -> Tensor: ...


class Sparsemax(_Map):
    """`sparsemax` as a module.

    Args:
        dim: the dimension along which the weights sum to 1.
        k: accepted and without effect.
        return_support_size: also return the number of positive weights.

    Examples:
        >>> abbe.entmax.Sparsemax(dim=-1)(torch.tensor([2.0, 0.0])).tolist()
        [1.0, 0.0]
    """

    def _weights(self, X: Tensor) -> Tensor:
        return sparsemax(X, self.dim, self.k)


class Entmax15(_Map):
    """`entmax15` as a module.

    Args:
        dim, k, return_support_size: as for `Sparsemax`.

    Examples:
        >>> abbe.entmax.Entmax15(dim=-1)(torch.tensor([3.0, 0.0])).tolist()
        [1.0, 0.0]
    """

    def _weights(self, X: Tensor) -> Tensor:
        return entmax15(X, self.dim, self.k)


def _sparsemax_threshold_and_support(X: Tensor, dim: int = -1, k: int | None = None) -> tuple[Tensor, Tensor]:
    """tau of [x - tau]_+ and the number of positive weights, for code written for the entmax package."""
    weights = sparsemax(X, dim, k)
    return X.amax(dim, keepdim=True) - weights.amax(dim, keepdim=True), (weights > 0).sum(dim, keepdim=True)


def _entmax_threshold_and_support(X: Tensor, dim: int = -1, k: int | None = None) -> tuple[Tensor, Tensor]:
    """tau of [x - tau]_+^2 and the number of positive weights; X is half of what `entmax15` takes."""
    weights = entmax15(2 * X, dim, k)
    return X.amax(dim, keepdim=True) - torch.sqrt(weights.amax(dim, keepdim=True)), (weights > 0).sum(dim, keepdim=True)


def entmax_bisect(
    X: Tensor, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True
) -> Tensor:
    """alpha-entmax of each row of X along `dim`, alpha > 0; arXiv 1905.05702, 1909.00015.

    1 is softmax, 2 is sparsemax; a higher alpha gives more zeros, and below 1 no weight is 0.

    Args:
        X: floating tensor of any shape.
        alpha: a number, or a tensor that broadcasts to X with 1 at `dim`; it may need a gradient.
        dim: the dimension along which the weights sum to 1.
        n_iter: accepted and without effect.
        ensure_sum_one: accepted and without effect: rows always sum to 1.

    Returns:
        Weights of the shape and dtype of X.

    Examples:
        >>> [round(p, 3) for p in abbe.entmax.entmax_bisect(torch.tensor([1.0, 0.5, -1.0]), alpha=1.3).tolist()]
        [0.643, 0.344, 0.014]
    """
    return along("entmax_bisect", entmax_weights, X, alpha, dim)


def sparsemax_bisect(X: Tensor, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True) -> Tensor:
    """The same as `sparsemax`: large differences in a row give few positive weights, small ones many.

    Args:
        X: floating tensor of any shape.
        dim: the dimension along which the weights sum to 1.
        n_iter: accepted and without effect.
        ensure_sum_one: accepted and without effect: rows always sum to 1.

    Returns:
        Weights of the shape and dtype of X.

    Examples:
        >>> abbe.entmax.sparsemax_bisect(torch.tensor([1.0, 0.5, -1.0])).tolist()
        [0.75, 0.25, 0.0]
    """
    return along("sparsemax_bisect", entmax_weights, X, 2.0, dim)


def normmax_bisect(X: Tensor, alpha: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> Tensor:
    """The p on the simplex that maximises <x, p> - ||p||_alpha, for each row x of X along `dim`.

    For alpha <= 1 this is argmax, and equal entries share the weight; a higher alpha spreads the weight more evenly.

    Args:
        X: floating tensor of any shape.
        alpha: > 0, a number, or a tensor that broadcasts to X with 1 at `dim`; it may need a gradient.
        dim: the dimension along which the weights sum to 1.
        n_iter: accepted and without effect.

    Returns:
        Weights of the shape and dtype of X.

    Examples:
        >>> [round(p, 3) for p in abbe.entmax.normmax_bisect(torch.tensor([1.0, 0.5, -1.0])).tolist()]
        [0.689, 0.311, 0.0]
    """
    return along("normmax_bisect", normmax_weights, X, alpha, dim)


def budget_bisect(X: Tensor, budget: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> Tensor:
    """The nearest point to each row of X along `dim` with entries in [0, 1] and the sum `budget`.

    A high budget selects many entries, a low one few. A row with fewer entries than the budget becomes ones.

    Args:
        X: floating tensor of any shape.
        budget: >= 0, a number, or a tensor that broadcasts to X with 1 at `dim`; it may need a gradient.
        dim: the dimension along which the weights sum to the budget.
        n_iter: accepted and without effect.

    Returns:
        Weights of the shape and dtype of X.

    Examples:
        >>> abbe.entmax.budget_bisect(torch.tensor([3.0, 0.5, 0.0]), budget=2).tolist()
        [1.0, 0.75, 0.25]
    """
    return along("budget_bisect", budget_weights, X, budget, dim)


class _BisectMap(nn.Module, ABC):
    def __init__(self, dim: int, n_iter: int | None) -> None:
        super().__init__()
        self.dim, self.n_iter = dim, n_iter

    def forward(self, X: Tensor) -> Tensor:
        """The weights of X.

        Args:
            X: floating tensor of any shape.
        """
        return self._weights(X)

    @abstractmethod
    def _weights(self, X: Tensor) -> Tensor: ...


class SparsemaxBisect(_BisectMap):
    """`sparsemax_bisect` as a module.

    Args:
        dim: the dimension along which the weights sum to 1.
        n_iter: accepted and without effect.

    Examples:
        >>> abbe.entmax.SparsemaxBisect()(torch.tensor([1.0, 0.5, -1.0])).tolist()
        [0.75, 0.25, 0.0]
    """

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__(dim, n_iter)

    def _weights(self, X: Tensor) -> Tensor:
        return sparsemax_bisect(X, self.dim)


class EntmaxBisect(_BisectMap):
    """`entmax_bisect` as a module; an `nn.Parameter` as alpha is learned.

    Args:
        alpha: > 0, a number, a tensor or a parameter.
        dim: the dimension along which the weights sum to 1.
        n_iter: accepted and without effect.

    Examples:
        >>> alpha = torch.nn.Parameter(torch.tensor(1.3))
        >>> abbe.entmax.EntmaxBisect(alpha)(torch.randn(2, 5)).sum(-1).requires_grad
        True
    """

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__(dim, n_iter)
        self.alpha = alpha

    def _weights(self, X: Tensor) -> Tensor:
        return entmax_bisect(X, self.alpha, self.dim)


class NormmaxBisect(_BisectMap):
    """`normmax_bisect` as a module; an `nn.Parameter` as alpha is learned.

    Args:
        alpha, dim, n_iter: as for `EntmaxBisect`.

    Examples:
        >>> abbe.entmax.NormmaxBisect(alpha=2)(torch.tensor([3.0, 0.0])).tolist()
        [1.0, 0.0]
    """

    def __init__(self, alpha: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__(dim, n_iter)
        self.alpha = alpha

    def _weights(self, X: Tensor) -> Tensor:
        return normmax_bisect(X, self.alpha, self.dim)


class BudgetBisect(_BisectMap):
    """`budget_bisect` as a module; an `nn.Parameter` as budget is learned.

    Args:
        budget: >= 0, a number, a tensor or a parameter.
        dim: the dimension along which the weights sum to the budget.
        n_iter: accepted and without effect.

    Examples:
        >>> abbe.entmax.BudgetBisect(budget=2)(torch.tensor([3.0, 0.5, 0.0])).tolist()
        [1.0, 0.75, 0.25]
    """

    def __init__(self, budget: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__(dim, n_iter)
        self.budget = budget

    def _weights(self, X: Tensor) -> Tensor:
        return budget_bisect(X, self.budget, self.dim)
