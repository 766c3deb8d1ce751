"""Row maps along any dimension of a tensor, with a parameter per row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._errors import AbbeError

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
