"""Spec strings: ``name`` or ``name:key=value,key=value``.

A value may itself be a spec. Commas always belong to the outermost spec, so a nested spec with more than one
parameter is put in brackets: ``hybrid:a=softmax,b=(entmax:alpha=1.5,learn=true),mix=0.5``; with at most one it
needs none: ``hybrid:a=softmax,b=topk:k=32,mix=0.5``. One value per head is written ``alpha=1.2/1.5/1.4``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._errors import AbbeError

__all__ = ["Learned", "Option", "format_spec", "parse_spec"]

MOST_NESTED = 32  # specs inside each other


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Split a spec string into name and parameters.

    Args:
        spec: "name" or "name:key=value,key=value".

    Returns:
        Name and parameters; values are still text, without the brackets around them.

    Raises:
        AbbeError: it is not a spec; the message says why.

    Examples:
        >>> abbe.normalizers.parse_spec("hybrid:a=softmax,b=(entmax:alpha=1.5),mix=0.5")
        ('hybrid', {'a': 'softmax', 'b': 'entmax:alpha=1.5', 'mix': '0.5'})
    """
    _check_nesting(spec)
    name, colon, rest = spec.strip().partition(":")
    if not name.strip():
        raise AbbeError(f"spec {spec!r} has no name, write it like 'entmax:alpha=1.5'")
    parameters: dict[str, str] = {}
    for part in _split_commas(rest, spec) if colon else []:
        key, equals, value = part.partition("=")
        key, value = key.strip(), value.strip()
        if not (equals and key and value):
            raise AbbeError(f"spec {spec!r}: {part.strip()!r} is not key=value")
        if key in parameters:
            raise AbbeError(f"spec {spec!r} gives {key} twice")
        parameters[key] = value[1:-1].strip() if value.startswith("(") and value.endswith(")") else value
    return name.strip(), parameters


def format_spec(name: str, parameters: dict[str, Any]) -> str:
    """Build a spec string; `parse_spec` reads it back.

    Args:
        name: of the normalizer.
        parameters: values by name.

    Returns:
        The spec.

    Examples:
        >>> abbe.normalizers.format_spec("entmax", {"alpha": 1.5, "learn": True})
        'entmax:alpha=1.5,learn=true'
    """
    if not parameters:
        return name
    return f"{name}:" + ",".join(f"{key}={_format_value(value)}" for key, value in parameters.items())


def _check_nesting(spec: str) -> None:
    """Refuse deep nesting first: a colon opens a spec, a comma closes all but the outermost within its brackets."""
    depth, outer = 0, [0]
    for character in spec:
        if character == ":":
            depth += 1
        elif character == "(":
            outer.append(depth)
        elif character == ")" and len(outer) > 1:
            depth = outer.pop()
        elif character == ",":
            depth = outer[-1] + 1
        if depth > MOST_NESTED:
            raise AbbeError(
                f"spec '{spec[:40]}...' is nested too deeply: at most {MOST_NESTED} specs inside each other"
            )


def _split_commas(text: str, spec: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth != 0:
        raise AbbeError(f"spec {spec!r} has unbalanced brackets")
    return parts


def _format_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        # Up to 1e15 every whole number is a float64, so all digits are exact.
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, tuple):
        return "/".join(map(_format_value, value))
    text = str(value)
    return f"({text})" if "," in text else text


Kind = Literal["number", "count", "flag", "normalizer"]
PerHead = float | tuple[float, ...]  # a number for all heads, or one for each


@dataclass(frozen=True)
class Option:
    """One parameter of a normalizer.

    Attributes:
        name: in a spec and as a keyword.
        default: its value if none is given.
        meaning: what it does.
        kind: "number", "count" (a whole number), "flag" (true or false) or "normalizer" (a spec).
        low: lower end of a number.
        high: upper end of a number.
        closed: the ends that are allowed: "low", "high", "both" or "" (none).
        shown: whether a spec contains it even at its default.
        optional: whether `none` is allowed.
    """

    name: str
    default: Any
    meaning: str
    kind: Kind = "number"
    low: float = -math.inf
    high: float = math.inf
    closed: str = ""
    shown: bool = False
    optional: bool = False

    @property
    def allowed(self) -> str:
        """The allowed values, in words.

        Examples:
            >>> abbe.normalizers.Option("p", 0.9, "kept mass", low=0, high=1, closed="high").allowed
            'a number in (0, 1]'
        """
        if self.kind == "flag":
            return "true or false"
        if self.kind == "normalizer":
            return "a normalizer or its spec"
        what = "a whole number" if self.kind == "count" else "a number"
        if math.isinf(self.low) and math.isinf(self.high):
            text = what
        elif math.isinf(self.high):
            text = f"{what} {'>=' if self._has('low') else '>'} {self.low:g}"
        else:
            left, right = "[" if self._has("low") else "(", "]" if self._has("high") else ")"
            text = f"{what} in {left}{self.low:g}, {self.high:g}{right}"
        return text + " or none" if self.optional else text

    def read(self, owner: str, value: object) -> Any:
        """Check a value given in Python or as text.

        Args:
            owner: name of the normalizer, for the message.
            value: a value or text.

        Returns:
            The value in its type.

        Raises:
            AbbeError: it is not allowed; the message says which values are.

        Examples:
            >>> abbe.normalizers.Option("k", 8, "kept keys", "count", 1, closed="low").read("topk", "32")
            32
        """
        if self.kind == "normalizer":
            return value
        parsed = _from_text(value) if isinstance(value, str) else value
        if parsed is None and self.optional:
            return None
        if self.kind == "flag":
            if isinstance(parsed, bool):
                return parsed
        elif isinstance(parsed, int | float) and not isinstance(parsed, bool) and self._contains(parsed):
            if self.kind == "number":
                return float(parsed)
            if parsed == int(parsed):
                return int(parsed)
        raise AbbeError(f"{owner}: {self.name} must be {self.allowed}, got {value!r}")

    def read_heads(self, owner: str, value: object) -> Any:
        """Check a value as `read` does, or several of them, one per head: a sequence, or text such as 1.2/1.5.

        Args:
            owner: name of the normalizer, for the message.
            value: a value, text or a sequence.

        Returns:
            The value in its type, or a tuple of values.

        Examples:
            >>> abbe.normalizers.Option("alpha", 1.5, "sharpness", low=1).read_heads("entmax", "1.2/1.5")
            (1.2, 1.5)
        """
        several = value.split("/") if isinstance(value, str) else value
        if not isinstance(several, list | tuple):
            return self.read(owner, value)
        if not several:
            raise AbbeError(f"{owner}: {self.name} must be {self.allowed}, or one for each head, got {value!r}")
        values = tuple(self.read(owner, one) for one in several)
        return values if len(values) > 1 else values[0]

    def _has(self, side: str) -> bool:
        return self.closed in (side, "both")

    def _contains(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        above = value >= self.low if self._has("low") else value > self.low
        return above and (value <= self.high if self._has("high") else value < self.high)


def _from_text(text: str) -> float | int | bool | str | None:
    words: dict[str, bool | None] = {"true": True, "false": False, "none": None}
    lowered = text.strip().lower()
    if lowered in words:
        return words[lowered]
    for number in (int, float):
        try:
            return number(lowered)
        except ValueError:
            continue
    return text


HEADS = Option(
    "heads", 1, "attention heads with a value each (logits (..., heads, queries, keys))", "count", 1, closed="low"
)
# The options of a normalizer with parameters that can be learned.
PER_HEAD = (Option("learn", False, "make it an nn.Parameter, kept in its range by construction", "flag"), HEADS)


class Learned(nn.Module):
    """A value per head that training cannot push out of the open range (low, high).

    A bounded range is parametrised by a sigmoid, a half line by exp, the whole line by the value itself.

    Args:
        owner: name of the normalizer, for messages.
        option: its parameter, with the range.
        initial: where training starts, strictly inside the range: a number, or one per head.
        heads: >= 1.

    Examples:
        >>> option = abbe.normalizers.Option("alpha", 1.5, "sharpness", low=1, high=2)
        >>> abbe.normalizers.Learned("entmax", option, 1.5, heads=4).value().shape
        torch.Size([4, 1, 1])
    """

    def __init__(self, owner: str, option: Option, initial: PerHead, heads: int) -> None:
        super().__init__()
        self.low, self.high = option.low, option.high
        self.starts = initial if isinstance(initial, tuple) else (initial,) * heads
        for start in self.starts:
            if not self.low < start < self.high:
                raise AbbeError(
                    f"{owner}: {option.name}={start:g} cannot learn from the edge of its range, "
                    f"start strictly between {self.low:g} and {self.high:g}"
                )
        shape = (heads, 1, 1) if heads > 1 else (1,)
        self.raw = nn.Parameter(torch.tensor([self._inverse(start) for start in self.starts]).view(shape))

    def _inverse(self, value: float) -> float:
        if math.isfinite(self.high):
            return math.log(value - self.low) - math.log(self.high - value)  # a ratio could round to 1
        return math.log(value - self.low) if math.isfinite(self.low) else value

    def above_low(self) -> Tensor:
        """value - low, exact even if value itself would round to low."""
        return self._above_low(self.raw)

    def _above_low(self, raw: Tensor) -> Tensor:
        if math.isfinite(self.high):
            return (self.high - self.low) * torch.sigmoid(raw)
        return torch.exp(raw) if math.isfinite(self.low) else raw

    def value(self) -> Tensor:
        """The value as a tensor with a gradient, (1,) or (heads, 1, 1)."""
        return self.above_low() + (self.low if math.isfinite(self.low) else 0.0)

    def numbers(self) -> PerHead:
        """The current value as a number, or as a tuple with one per head if there are several."""
        raws = self.raw.detach().cpu().flatten()
        numbers = tuple(self._number(raw, start) for raw, start in zip(raws, self.starts, strict=True))
        return numbers if len(numbers) > 1 else numbers[0]

    def _number(self, raw: Tensor, start: float) -> float:
        """A number that gives this parameter back bit for bit: its start, or else the shortest."""
        if self._gives(start, raw):
            return start
        exact = float(self._above_low(raw.double())) + (self.low if math.isfinite(self.low) else 0.0)
        for digits in range(1, 18):
            short = float(f"{exact:.{digits}g}")
            if self.low < short < self.high and self._gives(short, raw):
                return short
        # It rounds to the edge of its range, from where nothing could learn.
        return min(max(exact, math.nextafter(self.low, math.inf)), math.nextafter(self.high, -math.inf))

    def _gives(self, number: float, raw: Tensor) -> bool:
        return bool(raw.new_tensor(self._inverse(number)) == raw)
