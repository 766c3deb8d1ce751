"""A temperature in front of the normalizer: fixed, learned, or scheduled over the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ..._errors import AbbeError

_KINDS: dict[str, Callable[[float, float, float], float]] = {
    "linear": lambda a, b, done: a + (b - a) * done,
    "geometric": lambda a, b, done: a * (b / a) ** done,
    "cosine": lambda a, b, done: b + (a - b) * (1 + math.cos(math.pi * done)) / 2,
}
_LEAST = 1e-30  # logits divided by a smaller one overflow in float32
_ALLOWED = "a number > 0, learned, learned:0.1, or a schedule such as geometric:1:0.1 (linear, geometric, cosine)"


@dataclass(frozen=True)
class Temperature:
    """`start` is the value for all steps, or the first one if it is learned or follows a schedule to `end`."""

    start: float = 1.0
    learned: bool = False
    schedule: str = ""
    end: float = 1.0

    def at(self, done: float) -> float:
        """The value after this share of the run."""
        return _KINDS[self.schedule](self.start, self.end, min(1.0, done)) if self.schedule else self.start

    @property
    def fixed(self) -> bool:
        return not self.learned and not self.schedule

    def __str__(self) -> str:
        if self.schedule:
            return f"{self.schedule}:{self.start:g}:{self.end:g}"
        if self.learned:
            return "learned" if self.start == 1 else f"learned:{self.start:g}"
        return f"{self.start:g}"


def temperature(given: str | float) -> Temperature:
    """From a number, or from words such as "learned" and "geometric:1:0.1"."""
    kind, *numbers = str(given).strip().split(":")
    named = kind == "learned" or kind in _KINDS
    with suppress(ValueError):  # not a number
        values = [float(number) for number in (numbers if numbers or named else [kind])]
        if all(_LEAST <= value <= 1 / _LEAST for value in values):
            if kind == "learned" and len(values) <= 1:
                return Temperature(values[0] if values else 1.0, learned=True)
            if kind in _KINDS and len(values) == 2:
                return Temperature(values[0], schedule=kind, end=values[1])
            if not named and not numbers:
                return Temperature(values[0])
    raise AbbeError(f"temperature is {str(given)!r}, but must be {_ALLOWED}")
