"""Names and specs of all normalizers."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from .._errors import AbbeError
from ._base import Normalizer
from ._combined import Hybrid, Scaled
from ._entmax import AdaptiveScalableEntmax, Entmax, Sparsemax
from ._gates import NormalizedReLU, Sigmoid, Softpick, StickBreaking
from ._options import Option, parse_spec
from ._regularized import Budget, Normmax
from ._selection import Threshold, TopK, TopP
from ._shaped import AdaptiveTemperature, ClippedSoftmax, ElasticSoftmax, NormSoftmax, SelfAdjustedSoftmax
from ._softmax import LearnedSink, LearnedTemperature, LogNScaling, ScalableSoftmax, Softmax, SoftmaxPlusOne

__all__ = ["NormalizerInfo", "list_normalizers", "normalizer", "usual_specs"]

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
