"""sparsemax and 1.5-entmax, and what all maps and modules of this package share. No sort is needed, so `k` is idle."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Literal, overload

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from ..normalizers import entmax_weights

__all__ = ["Entmax15", "Sparsemax", "entmax15", "sparsemax"]

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


class OfFunction(nn.Module):
    """A function as a module: `class Name(OfFunction, of=function)`, with keywords for defaults that differ.

    It takes, and keeps as attributes, what the function takes beside its tensors. An `nn.Parameter` is learned.
    """

    function: ClassVar[Callable[..., Any]]
    given: ClassVar[tuple[str, ...]]
    more: ClassVar[dict[str, Any]] = {}  # what a module takes and its function does not

    def __init_subclass__(cls, of: Callable[..., Any] | None = None, **defaults: Any) -> None:
        super().__init_subclass__()
        if of is None:
            return
        # Modules of the entmax package do not take `ensure_sum_one`.
        left_out = ("X", "target", "ensure_sum_one")
        taken = [p for p in inspect.signature(of).parameters.values() if p.name not in left_out]
        cls.function, cls.given = staticmethod(of), tuple(p.name for p in taken)
        taken = [p.replace(default=defaults.get(p.name, p.default)) for p in taken]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        added = [inspect.Parameter(name, kind, default=default) for name, default in cls.more.items()]
        signature = inspect.Signature([inspect.Parameter("self", kind), *taken, *added])

        def __init__(self: OfFunction, *given: Any, **named: Any) -> None:
            nn.Module.__init__(self)
            bound = signature.bind(self, *given, **named)
            bound.apply_defaults()
            for name, value in [*bound.arguments.items()][1:]:
                setattr(self, name, value)
            self._check()

        __init__.__signature__ = signature  # type: ignore[attr-defined]
        cls.__init__ = __init__  # type: ignore[method-assign]

    def __init__(self, *given: Any, **named: Any) -> None:
        raise TypeError(f"{type(self).__name__} is no function as a module")

    def _check(self) -> None:
        """Raise an error if an attribute is wrong."""

    def _result(self, *tensors: Tensor) -> Any:
        return self.function(*tensors, **{name: getattr(self, name) for name in self.given})

    def forward(self, X: Tensor) -> Any:
        """The weights of X.

        Args:
            X: floating tensor of any shape.
        """
        return self._result(X)


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


class Sparsemax(OfFunction, of=sparsemax):
    """`sparsemax` as a module.

    Args:
        dim: the dimension along which the weights sum to 1.
        k: accepted and without effect.
        return_support_size: also return the number of positive weights.

    Examples:
        >>> abbe.entmax.Sparsemax(dim=-1)(torch.tensor([2.0, 0.0])).tolist()
        [1.0, 0.0]
    """


class Entmax15(OfFunction, of=entmax15):
    """`entmax15` as a module.

    Args:
        dim, k, return_support_size: as for `Sparsemax`.

    Examples:
        >>> abbe.entmax.Entmax15(dim=-1)(torch.tensor([3.0, 0.0])).tolist()
        [1.0, 0.0]
    """


def _sparsemax_threshold_and_support(X: Tensor, dim: int = -1, k: int | None = None) -> tuple[Tensor, Tensor]:
    """tau of [x - tau]_+ and the number of positive weights, for code written for the entmax package."""
    weights = sparsemax(X, dim, k)
    return X.amax(dim, keepdim=True) - weights.amax(dim, keepdim=True), (weights > 0).sum(dim, keepdim=True)


def _entmax_threshold_and_support(X: Tensor, dim: int = -1, k: int | None = None) -> tuple[Tensor, Tensor]:
    """tau of [x - tau]_+^2 and the number of positive weights; X is half of what `entmax15` takes."""
    weights = entmax15(2 * X, dim, k)
    return X.amax(dim, keepdim=True) - torch.sqrt(weights.amax(dim, keepdim=True)), (weights > 0).sum(dim, keepdim=True)
