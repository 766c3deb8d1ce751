"""Patterns that name layers and heads: "*", "layers.0,2,5-7", "*encoder*", each also with ".heads.0,4-6" behind it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from ..._errors import AbbeError
from .layers import Layer

_NUMBERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_LISTED = 8  # layers that an error lists
EVERY = "*"
FILE_PREFIX = "file:"  # of a swap that was saved


def rules_in(text: str) -> str | dict[str, str]:
    """Patterns and specs in one line, as a command line has them.

    Args:
        text: "PATTERN=SPEC; PATTERN=SPEC"; a spec alone, or "file:PATH", stays as it is.

    Returns:
        Specs by pattern, or the text.

    Raises:
        AbbeError: a part is no PATTERN=SPEC, or a pattern is given twice.

    Examples:
        >>> abbe.models.rules_in("layers.10-29=softmax:temperature=0.8; *.heads.0=sparsemax")
        {'layers.10-29': 'softmax:temperature=0.8', '*.heads.0': 'sparsemax'}
    """
    first, equals, _ = text.partition("=")
    if text.startswith(FILE_PREFIX) or (";" not in text and (not equals or ":" in first)):
        return text
    rules: dict[str, str] = {}
    for part in text.strip().removesuffix(";").split(";"):
        pattern, equals, spec = (piece.strip() for piece in part.partition("="))
        if not (pattern and equals and spec) or ":" in pattern:
            raise AbbeError(f"{part.strip()!r} is no PATTERN=SPEC: write 'layers.3=topk:k=32; *=softmax'")
        if pattern in rules:
            raise AbbeError(f"pattern {pattern!r} is given twice")
        rules[pattern] = spec
    return rules


def matches(pattern: str, layers: Sequence[Layer]) -> dict[Layer, tuple[int, ...]]:
    """The heads that a pattern names, of each layer that it names; refuses a pattern that names nothing."""
    if not isinstance(pattern, str):
        raise AbbeError(f"a pattern must be a string such as 'layers.3.heads.0,4'; got {pattern!r}")
    where, dot, heads = pattern.strip().rpartition(".heads.")
    if not dot:
        return {layer: tuple(range(layer.heads)) for layer in _layers(pattern, pattern.strip(), layers)}
    if not _NUMBERS.fullmatch(heads):
        raise AbbeError(f"pattern {pattern!r}: heads must be numbers such as 0,4 or 2-5; got {heads!r}")
    chosen = tuple(_numbers(pattern, heads))
    matched = _layers(pattern, where, layers)
    for layer in matched:
        if chosen[-1] >= layer.heads:
            head = next(head for head in chosen if head >= layer.heads)
            raise AbbeError(f"pattern {pattern!r}: {layer.path} has no head {head}; its heads are 0-{layer.heads - 1}")
    return dict.fromkeys(matched, chosen)


def _layers(pattern: str, where: str, layers: Sequence[Layer]) -> list[Layer]:
    start, dot, numbers = where.partition(".")
    if start == "layers" and dot and _NUMBERS.fullmatch(numbers):
        chosen = _numbers(pattern, numbers)
        for number in chosen:
            if number >= len(layers):
                raise AbbeError(f"pattern {pattern!r}: there is no layer {number}; {_listed(layers)}")
        return [layers[number] for number in chosen]
    named = [layer for layer in layers if fnmatchcase(layer.path, where)]
    if not named:
        raise AbbeError(
            f"pattern {pattern!r} matches no layer; write '*', 'layers.3', 'layers.0,2,5-7' or a glob of a path, "
            f"then .heads.0,4 for some heads; {_listed(layers)}"
        )
    return named


def _numbers(pattern: str, text: str) -> list[int]:
    """The numbers of "0,2,5-7", sorted."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if last and int(last) < int(first):
            raise AbbeError(f"pattern {pattern!r}: {part} runs backwards; write {last}-{first}")
        numbers.update(range(int(first), int(last or first) + 1))
    return sorted(numbers)


def _listed(layers: Sequence[Layer]) -> str:
    names = [f"{layer.number} {layer.path}" for layer in layers]
    if len(names) > _LISTED:
        names[_LISTED - 2 : -1] = ["..."]
    return f"layers: {', '.join(names)}"
