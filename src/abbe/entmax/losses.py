"""Losses for classes that go with the sparse maps: gradient p - y, 0 as soon as the target leads by a margin."""

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
    """Loss of every row of X (..., classes) whose gradient is sparsemax less the target; `k` changes nothing."""
    return fenchel_young(Family("sparsemax_loss", entmax_weights, tsallis, tsallis_kernel), X, target, 2.0)


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int | None = 50) -> Tensor:
    """The same as `sparsemax_loss`."""
    return fenchel_young(Family("sparsemax_bisect_loss", entmax_weights, tsallis, tsallis_kernel), X, target, 2.0)


def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """Loss of every row of X (..., classes) whose gradient is 1.5-entmax less the target; `k` changes nothing."""
    return fenchel_young(Family("entmax15_loss", entmax_weights, tsallis, tsallis_kernel), X, target, 1.5)


def entmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 1.5, n_iter: int | None = 50) -> Tensor:
    """Loss of every row of X (..., classes) whose gradient is alpha-entmax less the target; 1 is cross-entropy.

    `alpha` is a number or one per row, (..., 1), and has a gradient of its own.
    """
    return fenchel_young(Family("entmax_bisect_loss", entmax_weights, tsallis, tsallis_kernel), X, target, alpha)


def normmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 2, n_iter: int | None = 50) -> Tensor:
    """Loss of every row of X (..., classes) whose gradient is normmax less the target; alpha as above."""
    return fenchel_young(Family("normmax_bisect_loss", normmax_weights, norm), X, target, alpha)


class _Loss(nn.Module, ABC):
    """A loss per row, reduced: rows whose target is `ignore_index` count 0, and not in the mean."""

    def __init__(self, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__()
        if reduction not in _REDUCTIONS:
            raise AbbeError(f"{type(self).__name__}: reduction must be one of {_REDUCTIONS}, got {reduction!r}")
        self.ignore_index, self.reduction = int(ignore_index), reduction

    @abstractmethod
    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        """Of every row."""

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        counted = target != self.ignore_index
        if is_traced() or not bool(counted.all()):
            # Filled, not only left out of the sum: a NaN in an ignored row must not reach the gradient.
            X, target = X.masked_fill(~counted.unsqueeze(-1), 0.0), target.masked_fill(~counted, 0)
        rows = torch.where(counted, self.loss(X, target), 0.0)
        if self.reduction == "none":
            return rows
        return rows.sum() if self.reduction == "sum" else rows.sum() / counted.sum().clamp(min=1)


class SparsemaxLoss(_Loss):
    """`sparsemax_loss` as a module."""

    def __init__(self, k: int | None = None, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        self.k = k

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return sparsemax_loss(X, target)


class SparsemaxBisectLoss(_Loss):
    """`sparsemax_bisect_loss` as a module."""

    def __init__(self, n_iter: int | None = 50, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        self.n_iter = n_iter

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return sparsemax_bisect_loss(X, target)


class Entmax15Loss(_Loss):
    """`entmax15_loss` as a module."""

    def __init__(self, k: int | None = 100, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction)
        self.k = k

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        return entmax15_loss(X, target)


class EntmaxBisectLoss(_Loss):
    """`entmax_bisect_loss` as a module; an `nn.Parameter` as alpha gets gradients."""

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
    """`normmax_bisect_loss` as a module; an `nn.Parameter` as alpha gets gradients."""

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
