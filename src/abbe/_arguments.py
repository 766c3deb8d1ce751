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


def plain(given: Any) -> Any:
    """Numbers and arrays of numpy, torch and polars as Python numbers and lists; all else as it is."""
    for name in ("tolist", "to_list"):
        if callable(convert := getattr(given, name, None)) and not isinstance(given, type):
            return convert()
    return given


def whole(what: str, given: object, least: int | None = None, most: int | None = None, other: str = "") -> int:
    """A whole number in this range; `other` ends the error message with further allowed values."""
    value: Any = plain(given)
    if is_whole(value) and (least is None or value >= least) and (most is None or value <= most):
        return int(value)
    bounds = [f">= {least:,}"] if least is not None else []
    bounds += [f"<= {most:,}"] if most is not None and is_whole(value) and value > most else []
    raise AbbeError(f"{what} is {shown(given)}, but must be a whole number {' and '.join(bounds)}".rstrip() + other)


def several(what: str, given: object) -> tuple[Any, ...]:
    """One value or several; the caller checks each of them."""
    value = plain(given)
    if is_number(value):
        return (value,)
    if value is None or not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping, Set)):
        raise AbbeError(f"{what} is {shown(given)}, but must be a number or a list of numbers")
    return tuple(plain(one) for one in value)


def window_lengths(given: object) -> tuple[int, ...]:
    return tuple(whole("window length", one) for one in several("lengths", given))


def between(what: str, given: object, low: float, high: float, example: float) -> float:
    """A number strictly between two others."""
    value = plain(given)
    if not is_number(value) or not low < value < high:
        raise AbbeError(f"{what} is {shown(given)}, but must lie between {low:g} and {high:g}, such as {example:g}")
    return float(value)


def positive(what: str, given: object, example: str = "") -> tuple[float, ...]:
    """One finite number > 0 or several, without duplicates."""
    numbers = (given,) if isinstance(given, str) else several(what, given)
    if any(not (is_number(x) and 0 < x <= sys.float_info.max) for x in numbers):
        raise AbbeError(f"{what} must be numbers > 0{example}, got {shown(list(numbers))}")
    if len(set(numbers)) < len(numbers):
        raise AbbeError(f"{what} has duplicates: {shown(list(numbers))}")
    return tuple(float(x) for x in numbers)


def yes_or_no(what: str, given: object) -> bool:
    if not isinstance(given, bool):
        raise AbbeError(f"{what} is {shown(given)}, but must be True or False")
    return given
