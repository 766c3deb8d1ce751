"""sparsemax and 1.5-entmax. No sort is needed, so `k` changes nothing."""

from __future__ import annotations

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

    `k` is accepted and changes nothing. With `return_support_size` the number of positive weights comes second, 1 at
    `dim`.
    """
    return _with_support(along("sparsemax", entmax_weights, X, 2.0, dim), dim, return_support_size)


@overload
def entmax15(X: Tensor, dim: int = ..., k: int | None = ..., return_support_size: Literal[False] = ...) -> Tensor: ...
@overload
def entmax15(X: Tensor, dim: int = ..., k: int | None = ..., *, return_support_size: bool) -> Output: ...
def entmax15(X: Tensor, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> Output:
    """1.5-entmax of each row of X along `dim`, arXiv 1905.05702; arguments as for `sparsemax`."""
    return _with_support(along("entmax15", entmax_weights, X, 1.5, dim), dim, return_support_size)


Output = Tensor | tuple[Tensor, Tensor]


def _with_support(weights: Tensor, dim: int, wanted: bool) -> Output:
    return (weights, (weights > 0).sum(dim, keepdim=True)) if wanted else weights


class Sparsemax(nn.Module):
    """`sparsemax` as a module."""

    def __init__(self, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> None:
        super().__init__()
        self.dim, self.k, self.return_support_size = dim, k, return_support_size

    def forward(self, X: Tensor) -> Output:
        return sparsemax(X, self.dim, self.k, return_support_size=self.return_support_size)


class Entmax15(nn.Module):
    """`entmax15` as a module."""

    def __init__(self, dim: int = -1, k: int | None = None, return_support_size: bool = False) -> None:
        super().__init__()
        self.dim, self.k, self.return_support_size = dim, k, return_support_size

    def forward(self, X: Tensor) -> Output:
        return entmax15(X, self.dim, self.k, return_support_size=self.return_support_size)


def _sparsemax_threshold_and_support(X: Tensor, dim: int = -1, k: int | None = None) -> tuple[Tensor, Tensor]:
    """tau of [x - tau]_+ and the number of positive weights: code and tests written for the package use it."""
    weights = sparsemax(X, dim, k)
    return X.amax(dim, keepdim=True) - weights.amax(dim, keepdim=True), (weights > 0).sum(dim, keepdim=True)


def _entmax_threshold_and_support(X: Tensor, dim: int = -1, k: int | None = None) -> tuple[Tensor, Tensor]:
    """tau of [x - tau]_+^2 and the number of positive weights; X is half of what `entmax15` takes."""
    weights = entmax15(2 * X, dim, k)
    return X.amax(dim, keepdim=True) - torch.sqrt(weights.amax(dim, keepdim=True)), (weights > 0).sum(dim, keepdim=True)
