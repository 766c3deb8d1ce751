"""Maps that the entmax package finds by bisection: entmax of any alpha, normmax, budget.

Here Newton finds them to the last digit and rows sum to 1 (or to the budget) up to rounding, so `n_iter` and
`ensure_sum_one` have no effect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from ..normalizers import budget_weights, entmax_weights, normmax_weights
from ._along import along


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


class _Map(nn.Module, ABC):
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


class SparsemaxBisect(_Map):
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


class EntmaxBisect(_Map):
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


class NormmaxBisect(_Map):
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


class BudgetBisect(_Map):
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
