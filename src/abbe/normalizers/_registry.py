"""Names and specs of all normalizers, and those that are made of others: a mixture of two, any at a temperature."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._errors import AbbeError
from ._base import Normalizer
from ._entmax import AdaptiveScalableEntmax, Entmax, Sparsemax
from ._options import PER_HEAD, Option, parse_spec
from ._regularized import Budget, Normmax
from ._row_map import RowMap, blended_weights
from ._rows import NEG_INF, lowest, visible_and_top, visible_keys
from ._shaped import (
    AdaptiveTemperature,
    ClippedSoftmax,
    ElasticSoftmax,
    NormalizedReLU,
    NormSoftmax,
    SelfAdjustedSoftmax,
    Sigmoid,
    Softpick,
    StickBreaking,
)
from ._softmax import (
    LearnedSink,
    LearnedTemperature,
    LogNScaling,
    ScalableSoftmax,
    Softmax,
    SoftmaxPlusOne,
    Threshold,
    TopK,
    TopP,
)

__all__ = ["NormalizerInfo", "list_normalizers", "normalizer", "usual_specs"]


class Combination(Normalizer):
    """A normalizer whose options include other normalizers, which become its submodules."""

    def __init__(self, **given: Any) -> None:
        nested = (option for option in self.options if option.kind == "normalizer")
        parts = {option.name: normalizer(given.get(option.name, option.default)) for option in nested}
        super().__init__(**(given | parts))
        for name, part in parts.items():
            setattr(self, name, part)
        self.sums_to_one = all(part.sums_to_one for part in parts.values())  # type: ignore[misc]
        self.continuous = all(part.continuous for part in parts.values())  # type: ignore[misc]
        self._parts = tuple(parts)

    def _validate(self, logits: Tensor, mask: Tensor | None) -> None:
        super()._validate(logits, mask)
        for name in self._parts:
            try:
                getattr(self, name)._validate(logits, None)
            except AbbeError as error:
                raise AbbeError(f"{self.name}: {error}") from None


class Hybrid(Combination):
    """mix A + (1 - mix) B, mix in [0, 1] fixed or learned per head.

    Jacobian: the same mixture of the Jacobians. `lipschitz` is the mixture of the two constants, an upper bound.
    As n grows: the mixture of the two behaviours, so a share of B always survives.
    """

    name = "hybrid"
    meaning = "mixes two selection rules; high mix means a, low mix means b"
    paper = "2508.17821 (called for there)"
    example = "hybrid:a=softmax,b=topk:k=32,mix=0.5"
    options = (
        Option("a", "softmax", "first normalizer", "normalizer", shown=True),
        Option("b", "sparsemax", "second normalizer", "normalizer", shown=True),
        Option("mix", 0.5, "share of a", low=0, high=1, closed="both", shown=True),
        *PER_HEAD,
    )
    learnable = ("mix",)
    a: Normalizer
    b: Normalizer

    @property
    def is_one_map(self) -> bool:
        return False

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        raise TypeError("a hybrid is two maps")

    def _weights(self, logits: Tensor) -> Tensor:
        if "mix" in self.learned or not (self.a.is_one_map and self.b.is_one_map):
            return torch.lerp(self.b._weights(logits), self.a._weights(logits), self._value("mix", logits))
        return blended_weights(self.a._map(logits), self.b._map(logits), logits, self._given["mix"])

    def _jacobian(self, logits: Tensor) -> Tensor:
        mix = self._value("mix", logits).unsqueeze(-1)
        return mix * self.a._jacobian(logits) + (1 - mix) * self.b._jacobian(logits)

    def _lipschitz(self, keys: int) -> float:
        first, second = self.a.lipschitz(keys), self.b.lipschitz(keys)
        shares = self._learned("mix").value().flatten().tolist() if "mix" in self.learned else [self._given["mix"]]
        return max(_mixed(share, first, second) for share in shares)


def _mixed(share: float, first: float, second: float) -> float:
    """share * first + (1 - share) * second, where a share of 0 cancels an infinite constant."""
    return (share * first if share > 0 else 0.0) + ((1 - share) * second if share < 1 else 0.0)


# The first parameter of their map is a factor of the logits, and no parameter depends on the size of the logits.
_WITH_FACTOR = (Softmax, LearnedTemperature, ScalableSoftmax, LogNScaling, Sparsemax, Entmax, AdaptiveScalableEntmax)
# Adding a constant to all logits changes nothing.
_LEVEL_FREE = (*_WITH_FACTOR, AdaptiveTemperature, NormSoftmax, TopK, TopP, Threshold, ClippedSoftmax, ElasticSoftmax)


class Scaled(Combination):
    """A(exp(t) l) for any normalizer A, t within (-ln 100, ln 100), fixed or learned per head.

    Jacobian e^t times that of A at exp(t) l. Lipschitz constant e^t times that of A, with the largest t; an upper bound
    if that of A is one, or if both differ between heads. As n grows it behaves as A does: t does not depend on n.
    Where A depends on the level of its logits, a product beyond the largest number counts as that number.
    """

    name = "scaled"
    meaning = "another normalizer at its own temperature; high t means sharp weights, low t means flat ones"
    paper = "2111.09883 (for softmax)"
    example = "scaled:of=topk:k=32,t=0.5"
    options = (
        Option("of", "softmax", "the normalizer", "normalizer", shown=True),
        Option("t", 0.0, "log of the scale", low=-math.log(100), high=math.log(100), shown=True),
        *PER_HEAD,
    )
    learnable = ("t",)
    of: Normalizer

    @property
    def is_one_map(self) -> bool:
        return isinstance(self.of, (*_WITH_FACTOR, LearnedSink)) or (isinstance(self.of, Scaled) and self.of.is_one_map)

    def _scale(self, logits: Tensor) -> Tensor:
        return torch.exp(self._value("t", logits))

    def _scaled(self, logits: Tensor) -> Tensor:
        """The logits for A, relative to their top if A allows it: a product of large numbers would be rounded.

        -inf stays -inf, and adds no 0 * inf to the gradient of the scale; a finite logit stays finite.
        """
        level = _is_level_free(self.of)
        visible, top = visible_and_top(logits) if level else (visible_keys(logits), torch.zeros_like(logits[..., :1]))
        z = torch.where(visible, logits - top, 0.0)
        # Not `clamp`, which would hide NaN and +inf from the gradient.
        z = torch.where(torch.isneginf(z) & torch.isfinite(top), lowest(logits), z)
        scaled = self._scale(logits) * z
        bounded = torch.where(torch.isfinite(z), scaled.clamp(lowest(logits), -lowest(logits)), scaled)
        return torch.where(visible, bounded, NEG_INF)

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        if not self.is_one_map:
            raise TypeError(f"{self.of} has no factor of the logits: scale the logits instead")
        which, params = self.of._map(logits)
        scale = self._scale(logits)
        factor, *rest = torch.broadcast_tensors(scale, *params.split(1, -1))[1:]  # type: ignore[no-untyped-call]
        return which, torch.cat([scale * factor, *rest], -1)

    def _weights(self, logits: Tensor) -> Tensor:
        if self.is_one_map:
            return super()._weights(logits)
        return self.of._weights(self._scaled(logits))

    def _jacobian(self, logits: Tensor) -> Tensor:
        return self._scale(logits).unsqueeze(-1) * self.of._jacobian(self._scaled(logits))

    def _lipschitz(self, keys: int) -> float:
        return math.exp(self._largest("t")) * self.of.lipschitz(keys)


def _is_level_free(normalizer: Normalizer) -> bool:
    if isinstance(normalizer, Hybrid):
        return _is_level_free(normalizer.a) and _is_level_free(normalizer.b)
    return _is_level_free(normalizer.of) if isinstance(normalizer, Scaled) else isinstance(normalizer, _LEVEL_FREE)


CLASSES: tuple[type[Normalizer], ...] = (
    Softmax,
    LearnedTemperature,
    AdaptiveTemperature,
    ScalableSoftmax,
    LogNScaling,
    Sparsemax,
    Entmax,
    AdaptiveScalableEntmax,
    Normmax,
    Budget,
    SoftmaxPlusOne,
    LearnedSink,
    ClippedSoftmax,
    Sigmoid,
    NormalizedReLU,
    Softpick,
    SelfAdjustedSoftmax,
    TopK,
    TopP,
    Threshold,
    ElasticSoftmax,
    NormSoftmax,
    StickBreaking,
    Hybrid,
    Scaled,
)


@dataclass(frozen=True)
class NormalizerInfo:
    """What `list_normalizers` says of a normalizer.

    Attributes:
        name: its name in specs.
        meaning: what high and low values of its parameters mean.
        parameters: with ranges and defaults.
        paper: arXiv id of its source.
        example: an example spec.
    """

    name: str
    meaning: str
    parameters: tuple[Option, ...]
    paper: str
    example: str


def normalizer(spec: str | Normalizer, **parameters: Any) -> Normalizer:
    """Make a normalizer from a spec string, from a name and keyword arguments, or pass an instance through.

    `list_normalizers` has all of them, with what high and low values of their parameters mean.

    Args:
        spec: "name" or "name:key=value,key=value"; a value may be a spec, in brackets where it has commas.
        parameters: the same by keyword.

    Returns:
        A module: call it with logits (..., keys) and an optional mask.

    Raises:
        AbbeError: the name or a parameter is unknown, or a value is out of its range.

    Examples:
        >>> abbe.normalizer("entmax:alpha=1.5")
        Entmax('entmax:alpha=1.5')
        >>> abbe.normalizer("entmax", alpha=1.5, learn=True, heads=12).learned["alpha"].value().shape
        torch.Size([12, 1, 1])
        >>> str(abbe.normalizer("hybrid:a=softmax,b=(entmax:alpha=1.5,learn=true),mix=0.5"))
        'hybrid:a=softmax,b=(entmax:alpha=1.5,learn=true),mix=0.5'
    """
    if isinstance(spec, Normalizer):
        if parameters:
            raise AbbeError(f"normalizer: {spec} is already an instance, which takes no {', '.join(parameters)}")
        return spec
    if not isinstance(spec, str):
        raise AbbeError(f"normalizer: spec must be a string or a Normalizer, got {type(spec).__name__}")
    name, given = parse_spec(spec)
    twice = given.keys() & parameters.keys()
    if twice:
        raise AbbeError(f"normalizer: {', '.join(sorted(twice))} given both in {spec!r} and as a keyword")
    return _find(name)(**given, **parameters)


def list_normalizers() -> tuple[NormalizerInfo, ...]:
    """All normalizers: parameters with ranges and defaults, what high and low values mean, a paper, an example spec.

    Returns:
        One entry each, in the order of the documentation.

    Examples:
        >>> info = abbe.list_normalizers()[0]
        >>> info.name, info.example
        ('softmax', 'softmax:temperature=0.5')
        >>> info.meaning
        'the baseline; high temperature means flat weights, low means one key takes all'
    """
    return tuple(NormalizerInfo(c.name, c.meaning, c.options, c.paper, c.example) for c in CLASSES)


def usual_specs() -> dict[str, str]:
    """Short names of fixed normalizers and their specs: "entmax" and "entmax-1.5" for "entmax:alpha=1.5".

    Each normalizer that learns nothing by default and contains no other has one for its default, and one for each usual
    value of its first option.

    Returns:
        Specs by name.

    Examples:
        >>> abbe.normalizers.usual_specs()["entmax-1.5"]
        'entmax:alpha=1.5'
    """
    specs: dict[str, str] = {}
    for kind in CLASSES:
        if kind.always_learns or any(option.kind == "normalizer" for option in kind.options):
            continue
        specs[kind.name] = kind.name
        for value in kind.usual:
            specs[f"{kind.name}-{value:g}"] = f"{kind.name}:{kind.options[0].name}={value:g}"
    return specs


def _plain(name: str) -> str:
    """Case, spaces, dashes and underscores do not matter in a name."""
    return "".join(character for character in name.lower() if character not in " -_")


def _by_name(classes: tuple[type[Normalizer], ...]) -> dict[str, type[Normalizer]]:
    return {_plain(name): kind for kind in classes for name in (kind.name, *kind.aliases)}


_BY_NAME = _by_name(CLASSES)


def _find(name: str) -> type[Normalizer]:
    kind = _BY_NAME.get(_plain(name))
    if kind is None:
        near = difflib.get_close_matches(_plain(name), _BY_NAME, n=1)
        known = ", ".join(kind.name for kind in CLASSES)
        hint = f"Did you mean {_BY_NAME[near[0]].name!r}?" if near else f"Known normalizers: {known}"
        raise AbbeError(f"unknown normalizer {name!r}. {hint}")
    return kind
