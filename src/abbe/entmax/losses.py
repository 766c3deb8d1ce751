"""Classification losses of the sparse maps: their gradient is p - y, they are 0 once the target leads by a margin."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from ..normalizers import entmax_weights, normmax_weights
from ._entropy import norm, tsallis, tsallis_kernel
from ._fenchel_young import Family, fenchel_young, is_traced

_REDUCTIONS = ("elementwise_mean", "mean", "sum", "none")


def sparsemax_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """Loss of every row of X whose gradient is sparsemax minus the target.

    0 once the target leads by a margin of 1; high means that another class leads.

    Args:
        X: scores, (..., classes).
        target: class numbers, (...).
        k: accepted and without effect.

    Returns:
        Losses, (...), >= 0.

    Examples:
        >>> X, target = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.5, 0.0]]), torch.tensor([0, 2])
        >>> [round(loss, 3) for loss in abbe.entmax.sparsemax_loss(X, target).tolist()]
        [0.0, 0.583]
    """
    return fenchel_young(Family("sparsemax_loss", entmax_weights, tsallis, tsallis_kernel), X, target, 2.0)


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int | None = 50) -> Tensor:
    """The same as `sparsemax_loss`: 0 once the target leads by a margin of 1, high where another class leads.

    Args:
        X, target: as for `sparsemax_loss`.
        n_iter: accepted and without effect.

    Returns:
        Losses, (...), >= 0.

    Examples:
        >>> abbe.entmax.sparsemax_bisect_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).tolist()
        [0.0]
    """
    return fenchel_young(Family("sparsemax_bisect_loss", entmax_weights, tsallis, tsallis_kernel), X, target, 2.0)


def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """Loss of every row of X whose gradient is 1.5-entmax minus the target.

    0 once the target leads by a margin of 2; high means that another class leads.

    Args:
        X, target, k: as for `sparsemax_loss`.

    Returns:
        Losses, (...), >= 0.

    Examples:
        >>> X, target = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.5, 0.0]]), torch.tensor([0, 2])
        >>> [round(loss, 3) for loss in abbe.entmax.entmax15_loss(X, target).tolist()]
        [0.0, 0.78]
    """
    return fenchel_young(Family("entmax15_loss", entmax_weights, tsallis, tsallis_kernel), X, target, 1.5)


def entmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 1.5, n_iter: int | None = 50) -> Tensor:
    """Loss of every row of X whose gradient is alpha-entmax minus the target; at alpha = 1 it is cross-entropy.

    0 once the target leads by a margin of 1/(alpha - 1); high means that another class leads.

    Args:
        X, target: as for `sparsemax_loss`.
        alpha: > 0, a number or one per row, (..., 1); it has a gradient.
        n_iter: accepted and without effect.

    Returns:
        Losses, (...), >= 0.

    Examples:
        >>> X, target = torch.tensor([[0.0, 0.5, 0.0]]), torch.tensor([2])
        >>> [round(float(abbe.entmax.entmax_bisect_loss(X, target, alpha)), 3) for alpha in (1.0, 1.3, 2.0)]
        [1.294, 0.927, 0.583]
    """
    return fenchel_young(Family("entmax_bisect_loss", entmax_weights, tsallis, tsallis_kernel), X, target, alpha)


def normmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 2, n_iter: int | None = 50) -> Tensor:
    """Loss of every row of X whose gradient is normmax minus the target.

    0 once the target leads by a margin of 1; high means that another class leads.

    Args:
        X, target: as for `sparsemax_loss`.
        alpha: > 0, a number or one per row, (..., 1); it has a gradient.
        n_iter: accepted and without effect.

    Returns:
        Losses, (...), >= 0.

    Examples:
        >>> abbe.entmax.normmax_bisect_loss(torch.tensor([[3.0, 0.0]]), torch.tensor([0])).tolist()
        [0.0]
    """
    return fenchel_young(Family("normmax_bisect_loss", normmax_weights, norm), X, target, alpha)


class _Loss(nn.Module, ABC):
    """A loss per row, reduced: rows whose target is `ignore_index` count as 0, and not in the mean.

    Args:
        ignore_index: class number of the rows that do not count.
        reduction: "mean" (or "elementwise_mean"), "sum" or "none".
    """

    def __init__(self, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__()
        if reduction not in _REDUCTIONS:
            raise AbbeError(f"{type(self).__name__}: reduction must be one of {_REDUCTIONS}, got {reduction!r}")
        self.ignore_index, self.reduction = int(ignore_index), reduction

    @abstractmethod
    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        """Losses of every row, before they are reduced.

        Args:
            X: scores, (..., classes).
            target: class numbers, (...).
        """

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        """The reduced loss.

        Args:
            X: scores, (..., classes).
            target: class numbers, (...).
        """
        counted = target != self.ignore_index
        if is_traced() or not bool(counted.all()):
            # Filled, not only left out of the sum: a NaN in an ignored row must not reach the gradient.
            X, target = X.masked_fill(~counted.unsqueeze(-1), 0.0), target.masked_fill(~counted, 0)
        rows = torch.where(counted, self.loss(X, target), 0.0)
        if self.reduction == "none":
            return rows
        return rows.sum() if self.reduction == "sum" else rows.sum() / counted.sum().clamp(min=1)


class SparsemaxLoss(_Loss):
    """`sparsemax_loss` as a module.

    Args:
        k: accepted and without effect.
        ignore_index: class number of the rows that do not count.
        reduction: "mean" (or "elementwise_mean"), "sum" or "none".

    Examples:
        >>> float(abbe.entmax.SparsemaxLoss()(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0])))
        1.0
    """

    def __init__(self, k: int | None = None, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        self.k = k

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return sparsemax_loss(X, target)


class SparsemaxBisectLoss(_Loss):
    """`sparsemax_bisect_loss` as a module.

    Args:
        n_iter: accepted and without effect.
        ignore_index, reduction: as for `SparsemaxLoss`.

    Examples:
        >>> float(abbe.entmax.SparsemaxBisectLoss(reduction="sum")(torch.tensor([[0.0, 2.0]]), torch.tensor([0])))
        2.0
    """

    def __init__(self, n_iter: int | None = 50, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        self.n_iter = n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return sparsemax_bisect_loss(X, target)


class Entmax15Loss(_Loss):
    """`entmax15_loss` as a module.

    Args:
        k, ignore_index, reduction: as for `SparsemaxLoss`.

    Examples:
        >>> X, target = torch.tensor([[0.0, 3.0], [0.0, 3.0]]), torch.tensor([0, -100])
        >>> [round(loss, 3) for loss in abbe.entmax.Entmax15Loss(reduction="none")(X, target).tolist()]
        [3.0, 0.0]
    """

    def __init__(self, k: int | None = 100, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        self.k = k

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return entmax15_loss(X, target)


class EntmaxBisectLoss(_Loss):
    """`entmax_bisect_loss` as a module; an `nn.Parameter` as alpha gets gradients.

    Args:
        alpha: > 0, a number, a tensor or a parameter.
        n_iter: accepted and without effect.
        ignore_index, reduction: as for `SparsemaxLoss`.

    Examples:
        >>> alpha = torch.nn.Parameter(torch.tensor(1.5))
        >>> loss = abbe.entmax.EntmaxBisectLoss(alpha)(torch.tensor([[0.0, 0.5]]), torch.tensor([0]))
        >>> loss.backward()
        >>> alpha.grad is not None
        True
    """

    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        n_iter: int | None = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction)
        self.alpha, self.n_iter = alpha, n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return entmax_bisect_loss(X, target, self.alpha)


class NormmaxBisectLoss(_Loss):
    """`normmax_bisect_loss` as a module; an `nn.Parameter` as alpha gets gradients.

    Args:
        alpha, n_iter, ignore_index, reduction: as for `EntmaxBisectLoss`.

    Examples:
        >>> float(abbe.entmax.NormmaxBisectLoss()(torch.tensor([[3.0, 0.0]]), torch.tensor([0])))
        0.0
    """

    def __init__(
        self,
        alpha: float | Tensor = 2,
        n_iter: int | None = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction)
        self.alpha, self.n_iter = alpha, n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return normmax_bisect_loss(X, target, self.alpha)
