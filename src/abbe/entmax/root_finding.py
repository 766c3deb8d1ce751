"""Maps that the package finds by bisection: entmax of any alpha, normmax, budget.

Here Newton finds them to the last digit and rows sum to 1 (or to the budget) within rounding, so that `n_iter` and
`ensure_sum_one` change nothing.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..normalizers import budget_weights, entmax_weights, normmax_weights
from ._along import along


def entmax_bisect(
    X: Tensor, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True
) -> Tensor:
    """alpha-entmax of each row of X along `dim`, alpha > 0; arXiv 1905.05702, 1909.00015.

    `alpha` is a number or a tensor that broadcasts to X with 1 at `dim`; it may need a gradient. 1 is softmax, 2 is
    sparsemax; below 1 no weight is 0.
    """
    return along("entmax_bisect", entmax_weights, X, alpha, dim)


def sparsemax_bisect(X: Tensor, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True) -> Tensor:
    """The same as `sparsemax`."""
    return along("sparsemax_bisect", entmax_weights, X, 2.0, dim)


def normmax_bisect(X: Tensor, alpha: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> Tensor:
    """The p on the simplex that maximises <x, p> - ||p||_alpha, for each row x of X along `dim`; alpha as above.

    For alpha <= 1 this is argmax, and equal entries share the weight.
    """
    return along("normmax_bisect", normmax_weights, X, alpha, dim)


def budget_bisect(X: Tensor, budget: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> Tensor:
    """The nearest point to each row of X along `dim` with entries in [0, 1] and the sum `budget`.

    `budget` is a number or a tensor that broadcasts to X with 1 at `dim`, and it may need a gradient. A row with
    fewer entries than the budget becomes ones.
    """
    return along("budget_bisect", budget_weights, X, budget, dim)


class _Map(nn.Module):
    def __init__(self, dim: int, n_iter: int | None) -> None:
        super().__init__()
        self.dim, self.n_iter = dim, n_iter


class SparsemaxBisect(_Map):
    """`sparsemax_bisect` as a module."""

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__(dim, n_iter)

    def forward(self, X: Tensor) -> Tensor:
        return sparsemax_bisect(X, self.dim)


class EntmaxBisect(_Map):
    """`entmax_bisect` as a module; an `nn.Parameter` as alpha is learned."""

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__(dim, n_iter)
        self.alpha = alpha

    def forward(self, X: Tensor) -> Tensor:
        return entmax_bisect(X, self.alpha, self.dim)


class NormmaxBisect(_Map):
    """`normmax_bisect` as a module; an `nn.Parameter` as alpha is learned."""

    def __init__(self, alpha: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__(dim, n_iter)
        self.alpha = alpha

    def forward(self, X: Tensor) -> Tensor:
        return normmax_bisect(X, self.alpha, self.dim)


class BudgetBisect(_Map):
    """`budget_bisect` as a module; an `nn.Parameter` as budget is learned."""

    def __init__(self, budget: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__(dim, n_iter)
        self.budget = budget

    def forward(self, X: Tensor) -> Tensor:
        return budget_bisect(X, self.budget, self.dim)
