"""Maps that the entmax package finds by bisection: entmax of any alpha, normmax, budget.

Here Newton finds them to the last digit and rows sum to 1 (or to the budget) up to rounding, so `n_iter` and
`ensure_sum_one` have no effect.
"""

from __future__ import annotations

from torch import Tensor

from ..normalizers import budget_weights, entmax_weights, normmax_weights
from .activations import OfFunction, along

__all__ = [
    "BudgetBisect",
    "EntmaxBisect",
    "NormmaxBisect",
    "SparsemaxBisect",
    "budget_bisect",
    "entmax_bisect",
    "normmax_bisect",
    "sparsemax_bisect",
]


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
        X, dim, n_iter, ensure_sum_one: as for `entmax_bisect`.

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


class SparsemaxBisect(OfFunction, of=sparsemax_bisect, n_iter=None):
    """`sparsemax_bisect` as a module.

    Args:
        dim: the dimension along which the weights sum to 1.
        n_iter: accepted and without effect.

    Examples:
        >>> abbe.entmax.SparsemaxBisect()(torch.tensor([1.0, 0.5, -1.0])).tolist()
        [0.75, 0.25, 0.0]
    """


class EntmaxBisect(OfFunction, of=entmax_bisect):
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


class NormmaxBisect(OfFunction, of=normmax_bisect):
    """`normmax_bisect` as a module; an `nn.Parameter` as alpha is learned.

    Args:
        alpha, dim, n_iter: as for `EntmaxBisect`.

    Examples:
        >>> abbe.entmax.NormmaxBisect(alpha=2)(torch.tensor([3.0, 0.0])).tolist()
        [1.0, 0.0]
    """


class BudgetBisect(OfFunction, of=budget_bisect):
    """`budget_bisect` as a module; an `nn.Parameter` as budget is learned.

    Args:
        budget: >= 0, a number, a tensor or a parameter.
        dim: the dimension along which the weights sum to the budget.
        n_iter: accepted and without effect.

    Examples:
        >>> abbe.entmax.BudgetBisect(budget=2)(torch.tensor([3.0, 0.5, 0.0])).tolist()
        [1.0, 0.75, 0.25]
    """
