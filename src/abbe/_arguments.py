"""Numeric arguments as plain Python numbers; anything else is refused in one line.

Numbers and arrays of numpy and torch are accepted. True and False are not numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Set
from typing import Any

from ._errors import AbbeError

_LONGEST = 80  # characters of a value that a message repeats


def shown(value: object) -> str:
    """A value as an error message repeats it: in one short line."""
    line = " ".join(repr(value).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def is_whole(value: object) -> bool:
    """Whether it is an int; True is one in Python, but not here."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def plain(value: Any) -> Any:
    """Numbers and arrays of numpy, torch and polars as Python numbers and lists; all else as it is."""
    for name in ("tolist", "to_list"):
        if callable(convert := getattr(value, name, None)) and not isinstance(value, type):
            return convert()
    return value


def whole(name: str, value: object, least: int | None = None, most: int | None = None, other: str = "") -> int:
    """A whole number in this range; `other` ends the error message with further allowed values."""
    number: Any = plain(value)
    if is_whole(number) and (least is None or number >= least) and (most is None or number <= most):
        return int(number)
    bounds = [f">= {least:,}"] if least is not None else []
    bounds += [f"<= {most:,}"] if most is not None and is_whole(number) and number > most else []
    raise AbbeError(f"{name} is {shown(value)}, but must be a whole number {' and '.join(bounds)}".rstrip() + other)


def several(name: str, value: object) -> tuple[Any, ...]:
    """One value or several; the caller checks each of them."""
    values = plain(value)
    if is_number(values):
        return (values,)
    if values is None or not isinstance(values, Iterable) or isinstance(values, (str, bytes, Mapping, Set)):
        raise AbbeError(f"{name} is {shown(value)}, but must be a number or a list of numbers")
    return tuple(plain(one) for one in values)


def window_lengths(value: object) -> tuple[int, ...]:
    return tuple(whole("window length", one) for one in several("lengths", value))


def between(name: str, value: object, low: float, high: float, example: float) -> float:
    """A number strictly between two others."""
    number = plain(value)
    if not is_number(number) or not low < number < high:
        raise AbbeError(f"{name} is {shown(value)}, but must lie between {low:g} and {high:g}, such as {example:g}")
    return float(number)


def positive(name: str, value: object, example: str = "") -> tuple[float, ...]:
    """One finite number > 0 or several, without duplicates."""
    numbers = (value,) if isinstance(value, str) else several(name, value)
    if any(not (is_number(x) and 0 < x <= sys.float_info.max) for x in numbers):
        raise AbbeError(f"{name} must be numbers > 0{example}, got {shown(list(numbers))}")
    if len(set(numbers)) < len(numbers):
        raise AbbeError(f"{name} has duplicates: {shown(list(numbers))}")
    return tuple(float(x) for x in numbers)


def yes_or_no(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise AbbeError(f"{name} is {shown(value)}, but must be True or False")
    return value
