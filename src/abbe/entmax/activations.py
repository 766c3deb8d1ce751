"""sparsemax and 1.5-entmax. No sort is needed, so `k` changes nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, overload

import torch
from torch import Tensor, nn

from ..normalizers import entmax_weights
from ._along import along


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
