"""The contract that every normalizer keeps: masks, dtypes, checks, spec strings, Jacobian and Lipschitz constant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from ._dispatch import RowMap, row_weights
from ._options import Learned, Option
from ._rows import NEG_INF
from ._spec import format_spec

_HALF = (torch.float16, torch.bfloat16)


class Normalizer(nn.Module, ABC):
    """Turns logits into attention weights along the last dimension.

    A masked key is the same as an absent one, and so is a key whose logit is -inf; n is the number of the others.
    A row without keys gives zeros and zero gradients. float16 and bfloat16 are computed in float32. NaN and +inf
    propagate, or raise with ``check=True``.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    meaning: ClassVar[str]
    paper: ClassVar[str]
    example: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    learnable: ClassVar[tuple[str, ...]] = ()
    always_learns: ClassVar[bool] = False
    sums_to_one: ClassVar[bool] = True
    continuous: ClassVar[bool] = True

    def __init__(self, **given: Any) -> None:
        super().__init__()
        known = {option.name: option for option in self.options}
        for unknown in given.keys() - known.keys():
            raise AbbeError(f"{self.name}: no parameter {unknown!r}, known: {', '.join(known) or 'none'}")
        self._given = {name: option.read(self.name, given.get(name, option.default)) for name, option in known.items()}
        for name, value in self._given.items():
            if not isinstance(value, nn.Module):
                setattr(self, name, value)
        learns = self.always_learns or self._given.get("learn", False)
        if self._given.get("heads", 1) > 1 and not learns:
            raise AbbeError(
                f"{self.name}: heads={self._given['heads']} needs learn=true, a fixed value is the same for all"
            )
        self.learned = nn.ModuleDict()
        for name in self.learnable if learns else ():
            self.learned[name] = Learned(self.name, known[name], self._given[name], self._given["heads"])

    def forward(self, logits: Tensor, mask: Tensor | None = None, *, check: bool = False) -> Tensor:
        """Weights of the same shape and dtype; `mask` is bool, True = attend, and broadcasts to the logits."""
        return self._weights(self._prepared(logits, mask, check)).to(logits.dtype)

    def jacobian(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        """d weights_i / d logits_j in closed form, shape (..., L, L); zero rows and columns at masked keys."""
        return self._jacobian(self._prepared(logits, mask, False)).to(logits.dtype)

    def lipschitz(self, keys: int) -> float:
        """Supremum of the spectral norm of the Jacobian over rows of up to `keys` visible keys."""
        if keys < 1:
            raise AbbeError(f"{self.name}: keys must be a whole number >= 1, got {keys!r}")
        return self._lipschitz(keys)

    @property
    def spec(self) -> str:
        """The spec string that makes this normalizer again (as configured: what was learned is in state_dict)."""
        shown = {o.name: self._given[o.name] for o in self.options if o.shown or self._given[o.name] != o.default}
        return format_spec(self.name, shown)

    def __str__(self) -> str:
        return self.spec

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec!r})"

    def _weights(self, logits: Tensor) -> Tensor:
        """Weights of float32 or float64 logits in which an absent key is -inf."""
        which, params = self._map(logits)
        return row_weights(which, logits, params)

    @property
    def is_one_map(self) -> bool:
        """Whether `_map` says it all; a combination of normalizers may have none."""
        return True

    @abstractmethod
    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        """The row-wise map and its parameters, which broadcast over the rows of these logits."""

    @abstractmethod
    def _jacobian(self, logits: Tensor) -> Tensor: ...

    @abstractmethod
    def _lipschitz(self, keys: int) -> float: ...

    def _learned(self, name: str) -> Learned:
        return cast(Learned, self.learned[name])

    def _value(self, name: str, logits: Tensor) -> Tensor:
        """A parameter as a tensor that broadcasts over rows, shape (1,) or (heads, 1, 1): learned or fixed."""
        if name in self.learned:
            return self._learned(name).value().to(logits.dtype)
        return logits.new_full((1,), self._given[name])

    def _largest(self, name: str) -> float:
        """The largest value of a parameter over the heads."""
        if name in self.learned:
            return float(self._learned(name).value().detach().max())
        return float(self._given[name])

    def _prepared(self, logits: Tensor, mask: Tensor | None, check: bool) -> Tensor:
        self._validate(logits, mask)
        work = logits.float() if logits.dtype in _HALF else logits
        if mask is not None:
            work = work.masked_fill(~mask, NEG_INF)
        if check and bool((torch.isnan(work) | torch.isposinf(work)).any()):
            raise AbbeError(f"{self.name}: logits hold NaN or +inf at visible keys")
        return work

    def _validate(self, logits: Tensor, mask: Tensor | None) -> None:
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            came = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
            raise AbbeError(f"{self.name}: logits must be a floating-point tensor, got {came}")
        shape = tuple(logits.shape)
        if logits.ndim == 0 or shape[-1] == 0:
            raise AbbeError(f"{self.name}: logits must have at least one key in the last dimension, got shape {shape}")
        heads = self._given.get("heads", 1)
        if heads > 1 and (logits.ndim < 3 or shape[-3] != heads):
            raise AbbeError(f"{self.name}: logits must be (..., {heads} heads, queries, keys), got shape {shape}")
        if mask is None:
            return
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            came = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise AbbeError(f"{self.name}: mask must be a bool tensor (True = attend), got {came}")
        if not broadcasts_to(tuple(mask.shape), shape):
            raise AbbeError(f"{self.name}: mask of shape {tuple(mask.shape)} does not broadcast to logits {shape}")


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether a tensor of `shape` expands to `target` and no further."""
    if len(shape) > len(target):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False))
