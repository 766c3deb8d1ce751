"""Checks and small helpers shared by all bounds: which keys are visible, and which are selected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._errors import AbbeError

__all__ = ["selected_set"]

Number = Tensor | float | int


def as_tensor(name: str, value: Number, like: Tensor | None = None) -> Tensor:
    """A floating tensor without NaN; whole numbers and Python numbers become float64."""
    if not isinstance(value, Tensor):
        dtype = like.dtype if like is not None else torch.float64
        value = torch.tensor(value, dtype=dtype, device=like.device if like is not None else None)
    if not value.is_floating_point():
        value = value.double()
    if bool(torch.isnan(value.detach()).any()):
        raise AbbeError(f"{name} holds NaN")
    return value


def _checked(
    name: str, value: Number, fits: Callable[[Tensor], Tensor], allowed: str, like: Tensor | None = None
) -> Tensor:
    """`as_tensor`, if all numbers fit; else an error that shows the first that does not."""
    value = as_tensor(name, value, like)
    numbers = value.detach()
    good = fits(numbers)
    if not bool(good.all()):
        raise AbbeError(f"{name} must {allowed}, got {numbers[~good][0]:g}")
    return value


def positive(name: str, value: Number, like: Tensor | None = None) -> Tensor:
    return _checked(name, value, lambda x: x > 0, "be > 0", like)


def not_negative(name: str, value: Number, like: Tensor | None = None) -> Tensor:
    return _checked(name, value, lambda x: x >= 0, "be >= 0", like)


def fraction(name: str, value: Number) -> Tensor:
    return _checked(name, value, lambda x: (x > 0) & (x < 1), "lie strictly between 0 and 1")


def probability(name: str, value: Number) -> Tensor:
    return _checked(name, value, lambda x: (x >= 0) & (x <= 1), "lie in [0, 1]")


def key_count(name: str, value: Number, least: int = 1) -> Tensor:
    """A number of keys, as a float tensor so that it broadcasts in formulas."""
    return _checked(name, value, lambda x: (x >= least) & (x == x.round()), f"be a whole number >= {least}")


def _expanded(name: str, marks: Tensor, like: Tensor) -> Tensor:
    try:
        return marks.expand(like.shape)
    except RuntimeError:
        raise AbbeError(f"{name} of shape {tuple(marks.shape)} does not broadcast to {tuple(like.shape)}") from None


def selected_count(count: Number, keys: Tensor, name: str = "count") -> Tensor:
    """N, checked against 1..L."""
    n = key_count(name, count)
    # A plain number moves to the device of the keys; a tensor stays where it is.
    n = n if isinstance(count, Tensor) else n.to(keys.device)
    try:
        fits = bool((n <= keys.detach()).all())
    except RuntimeError:
        raise AbbeError(f"{name} of shape {tuple(n.shape)} does not broadcast to {tuple(keys.shape)}") from None
    if not fits:
        raise AbbeError(f"{name} must lie in 1..{int(keys.detach().min())} (the keys), got {n.detach().max():g}")
    return n


def checked_weights(weights: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights with absent keys set to 0, and the visible keys."""
    if not isinstance(weights, Tensor) or weights.ndim == 0 or weights.shape[-1] == 0:
        raise AbbeError(f"weights must be a tensor (..., keys) with at least one key, got {_shape(weights)}")
    weights = as_tensor("weights", weights)
    visible = checked_mask(mask, weights)
    weights = torch.where(visible, weights, 0.0)
    low, total = weights.detach().amin(), weights.detach().sum(-1).amax()
    if weights.numel() and (low < 0 or total > 1 + 1e-6):  # float32 weights of a long row sum to 1 only within rounding
        raise AbbeError(f"weights must be >= 0 and sum to at most 1, got a smallest of {low:g} and a sum of {total:g}")
    return weights, visible


def checked_mask(mask: Tensor | None, like: Tensor) -> Tensor:
    if mask is None:
        return torch.ones_like(like, dtype=torch.bool)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise AbbeError(f"mask must be a bool tensor (True = visible), got {_shape(mask)}")
    return _expanded("mask", mask, like)


def checked_vectors(vectors: Tensor, weights: Tensor, name: str = "vectors") -> Tensor:
    """One vector per key: (..., keys, d)."""
    if not isinstance(vectors, Tensor) or vectors.ndim < 2 or vectors.shape[-2] != weights.shape[-1]:
        raise AbbeError(f"{name} must be (..., {weights.shape[-1]} keys, d), got {_shape(vectors)}")
    try:
        torch.broadcast_shapes(vectors.shape[:-2], weights.shape[:-1])  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise AbbeError(f"{name} {tuple(vectors.shape)} do not fit weights {tuple(weights.shape)}") from None
    return as_tensor(name, vectors)


class Rows(NamedTuple):
    """Checked weights (0 where absent), vectors, visible keys, and the selected set."""

    weights: Tensor
    vectors: Tensor
    visible: Tensor
    chosen: Tensor


def checked_rows(
    weights: Tensor, vectors: Tensor, count: Number, mask: Tensor | None = None, name: str = "vectors"
) -> Rows:
    """`count` is N, for the N largest weights, or a bool tensor that marks the selected set."""
    weights, visible = checked_weights(weights, mask)
    vectors = checked_vectors(vectors, weights, name)
    if not (isinstance(count, Tensor) and count.dtype == torch.bool):
        return Rows(weights, vectors, visible, selected_set(weights, count, mask))
    chosen = _expanded("count", count, weights) & visible
    if not bool(chosen.any(-1).all()):
        raise AbbeError("count must mark at least one visible key of every row, got a row with none")
    return Rows(weights, vectors, visible, chosen)


def selected_set(weights: Tensor, count: Number, mask: Tensor | None = None) -> Tensor:
    """Which keys are selected: the `count` keys of largest weight; earlier keys win ties.

    Args:
        weights: (..., keys), >= 0, with a sum of at most 1.
        count: N, 1 to the visible keys; a number or one per row.
        mask: bool, True = visible, broadcasts to the weights.

    Returns:
        Bool, (..., keys), True at the selected keys.

    Examples:
        >>> abbe.bounds.selected_set(torch.tensor([0.1, 0.6, 0.3]), 2).tolist()
        [False, True, True]
    """
    weights, visible = checked_weights(weights, mask)
    n = selected_count(count, visible.sum(-1).double())
    # -1 is below any weight: absent keys come last.
    order = torch.where(visible, weights.detach(), -1.0).argsort(dim=-1, descending=True, stable=True)
    rank = torch.arange(weights.shape[-1], device=weights.device)
    return torch.zeros_like(visible).scatter(-1, order, (rank < n.unsqueeze(-1)).expand(order.shape))


def root(square: Tensor) -> Tensor:
    """Square root with gradient 0, not NaN, at 0."""
    return torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0)


def _shape(value: Any) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
