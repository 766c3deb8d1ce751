"""The contract that every normalizer keeps: masks, dtypes, checks, spec strings, Jacobian and Lipschitz constant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from ._options import MOST_NESTED, Learned, Option, PerHead, format_spec
from ._row_map import RowMap, row_weights
from ._rows import NEG_INF

__all__ = ["Normalizer"]

_HALF = (torch.float16, torch.bfloat16)


class Normalizer(nn.Module, ABC):
    """Turns logits into attention weights along the last dimension.

    A masked key is the same as an absent one, and so is a key whose logit is -inf; n is the number of visible keys.
    A row without keys gives zeros and zero gradients. float16 and bfloat16 are computed in float32. Logits may be as
    large as their dtype allows: where the range of a row, or a logit times a scale, exceeds that, the weights are those
    of the limit (the largest keys share the row). NaN and +inf propagate, or raise with ``check=True``.
    `abbe.normalizer` makes one from a spec.

    Args:
        given: the parameters of the class, by the names of its `options`.

    Attributes:
        name: its name in specs.
        aliases: alternative names.
        meaning: what high and low values of its parameters mean.
        paper: arXiv id of its source.
        example: an example spec; by default that of its defaults.
        options: its parameters, with ranges and defaults.
        learnable: parameters that can be learned.
        always_learns: whether its parameters are learned without `learn=true`.
        sums_to_one: whether the weights of a row sum to 1.
        continuous: whether small changes of the logits always mean small changes of the weights.
        usual: values of its first option that have a name in transformers.
        needs_order: whether its keys must be in causal order.
        row_map: its map of a row, unless that depends on its parameters.

    Examples:
        >>> logits, mask = torch.tensor([2.0, 0.0, 5.0]), torch.tensor([True, True, False])
        >>> abbe.normalizer("sparsemax")(logits, mask).tolist()
        [1.0, 0.0, 0.0]
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
    usual: ClassVar[tuple[float, ...]] = ()
    needs_order: ClassVar[bool] = False
    row_map: RowMap

    if TYPE_CHECKING:  # torch's own says that an attribute is a tensor or a module

        def __getattr__(self, name: str) -> Any:
            """The value of a parameter, by the name of its option."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Learnable parameters become properties: `n.alpha` is the current number."""
        super().__init_subclass__(**options)
        if "name" in vars(cls) and "example" not in vars(cls):
            cls.example = format_spec(cls.name, {option.name: option.default for option in cls.options if option.shown})
        for name in set(cls.learnable) - vars(cls).keys():
            setattr(cls, name, property(partial(_number_of, name)))

    def __init__(self, **given: Any) -> None:
        super().__init__()
        known = {option.name: option for option in self.options}
        for unknown in given.keys() - known.keys():
            raise AbbeError(f"{self.name}: no parameter {unknown!r}, known: {', '.join(known) or 'none'}")
        self._given: dict[str, Any] = {}
        for name, option in known.items():
            read = option.read_heads if name in self.learnable else option.read
            self._given[name] = read(self.name, given.get(name, option.default))
        self._check_nesting()
        self._count_heads("heads" in given)
        for name, value in self._given.items():
            if not isinstance(value, nn.Module) and name not in self.learnable:
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
        """Attention weights of the logits.

        Args:
            logits: (..., keys), floating.
            mask: bool, True = attend, broadcasts to the logits.
            check: raise an error for NaN and +inf instead of propagating them.

        Returns:
            Weights of the same shape and dtype. High means that a key is attended to; 0 that it is not.
        """
        return self._weights(self._prepared(logits, mask, check)).to(logits.dtype)

    def jacobian(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        """How every weight moves with every logit: d weights_i / d logits_j in closed form.

        Args:
            logits: (..., L), floating.
            mask: bool, True = attend, broadcasts to the logits.

        Returns:
            (..., L, L); zero rows and columns at masked keys.

        Examples:
            >>> abbe.normalizer("softmax").jacobian(torch.zeros(2)).tolist()
            [[0.25, -0.25], [-0.25, 0.25]]
        """
        return self._jacobian(self._prepared(logits, mask, False)).to(logits.dtype)

    def lipschitz(self, keys: int) -> float:
        """How sensitive it can be: supremum of the Jacobian's spectral norm over rows of up to `keys` visible keys.

        Args:
            keys: >= 1.

        Returns:
            Weight per logit. High means that the weights of some row can change a lot; infinite if they can jump.

        Examples:
            >>> abbe.normalizer("softmax:temperature=0.5").lipschitz(128)
            1.0
        """
        if keys < 1:
            raise AbbeError(f"{self.name}: keys must be a whole number >= 1, got {keys!r}")
        # The only key of a row has weight 1, whatever its logit.
        return 0.0 if keys == 1 and self.sums_to_one else self._lipschitz(keys)

    @property
    def spec(self) -> str:
        """The spec string that makes this normalizer again, with its current learned values."""
        return self._format(lambda name: self._number(name) if name in self.learned else self._given[name])

    @property
    def initial_spec(self) -> str:
        """The spec string that it was made from: values learned since then are only in its state_dict."""
        return self._format(lambda name: getattr(self._given[name], "initial_spec", self._given[name]))

    def _format(self, value: Callable[[str], Any]) -> str:
        values = {option.name: _shared(value(option.name)) for option in self.options}
        shown = {option.name for option in self.options if option.shown or values[option.name] != option.default}
        return format_spec(self.name, {name: value for name, value in values.items() if name in shown})

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
        """Whether a single `_map` defines it; a combination of normalizers may have none."""
        return True

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        """The row-wise map and its parameters, which broadcast over the rows of these logits; by default the numbers
        among the options, in their order."""
        numbers = [self._value(option.name, logits) for option in self.options if option.kind == "number"]
        return self.row_map, torch.cat(numbers, -1) if numbers else logits.new_zeros(1)

    @abstractmethod
    def _jacobian(self, logits: Tensor) -> Tensor: ...

    @abstractmethod
    def _lipschitz(self, keys: int) -> float: ...

    def _check_nesting(self) -> None:
        """Each level costs several calls, and Python allows about a thousand nested calls."""
        self._nesting: int = 1
        for value in self._given.values():  # a plain loop: torch.compile traces it
            if isinstance(value, Normalizer):
                self._nesting = max(self._nesting, 1 + value._nesting)
        if self._nesting > MOST_NESTED + 1:  # one more than in a spec, where the innermost may have no parameters
            raise AbbeError(f"{self.name}: normalizers can be nested at most {MOST_NESTED} deep")

    def _count_heads(self, known: bool) -> None:
        """Unless the number of heads is known, it is the number of values of a parameter."""
        for name in self.learnable:
            if not isinstance(values := self._given[name], tuple):
                continue
            if not known:
                self._given["heads"], known = len(values), True
            if self._given["heads"] != len(values):
                raise AbbeError(f"{self.name}: {name} has {len(values)} values for {self._given['heads']} heads")

    def _number(self, name: str) -> PerHead:
        """The current value of a learnable parameter: a number, or a tuple with one per head."""
        if name not in self._given:
            raise AttributeError(f"{self.name} has no {name}")
        has_numbers = name in self.learned and not self._learned(name).raw.is_meta
        return self._learned(name).numbers() if has_numbers else self._given[name]

    def _numbers(self, name: str) -> tuple[float, ...]:
        """One value per head, or the one that all heads share."""
        value = self._number(name)
        return value if isinstance(value, tuple) else (value,)

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
        # Half precision has too few digits for sums over long rows.
        work = logits.float() if logits.dtype in _HALF else logits
        if mask is not None:
            work = work.masked_fill(~mask, NEG_INF)
        if check and bool((torch.isnan(work) | torch.isposinf(work)).any()):
            raise AbbeError(f"{self.name}: logits hold NaN or +inf at visible keys")
        return work

    def _validate(self, logits: Tensor, mask: Tensor | None) -> None:
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            raise AbbeError(f"{self.name}: logits must be a floating-point tensor, got {_kind(logits)}")
        shape = tuple(logits.shape)
        if logits.ndim == 0 or shape[-1] == 0:
            raise AbbeError(f"{self.name}: logits must have at least one key in the last dimension, got shape {shape}")
        heads = self._given.get("heads", 1)
        if heads > 1 and (logits.ndim < 3 or shape[-3] != heads):
            raise AbbeError(f"{self.name}: logits must be (..., {heads} heads, queries, keys), got shape {shape}")
        if mask is None:
            return
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            raise AbbeError(f"{self.name}: mask must be a bool tensor (True = attend), got {_kind(mask)}")
        if not broadcasts_to(tuple(mask.shape), shape):
            raise AbbeError(f"{self.name}: mask of shape {tuple(mask.shape)} does not broadcast to logits {shape}")


def _number_of(name: str, owner: Normalizer) -> PerHead:
    return owner._number(name)


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def _shared(value: Any) -> Any:
    """A single number if all heads have the same."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether a tensor of `shape` expands to `target` and no further."""
    if len(shape) > len(target):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False))
