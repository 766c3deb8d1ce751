"""Numbers as text. The script of the pages (`views/scripts/data.js`) gives the same text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

MISSING = "–"


def number(value: Any, digits: int = 4, *, signed: bool = False, missing: str = MISSING) -> str:
    """A number with some significant digits, whole numbers in full; other values as they are."""
    if value is None:
        return missing
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    sign = "+" if signed and value > 0 else ""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{sign}∞" if value > 0 else "-∞"
    # Exact ties round away from 0, as in JavaScript; Python's formats would round them to even.
    rounded = Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal(value)
    size = abs(rounded)
    if size >= 1_000_000_000 or 0 < size < Decimal("0.0001"):
        mantissa, _, exponent = f"{rounded:.{digits - 1}e}".partition("e")
        return f"{sign}{Decimal(mantissa).normalize():f}e{int(exponent):+d}"
    if size >= 1000 or value == int(value):
        rounded = Decimal(value).quantize(Decimal(1), ROUND_HALF_UP)
    return f"{sign}{rounded.normalize() + 0:,f}"


def percent(share: float | None, digits: int | None = None, *, signed: bool = False) -> str:
    """ "74 %", "0.3 %", "below 0.1 %": whole from 1 % on, or with some significant digits: "0.17 %"."""
    if share is None:
        return "an unknown share"
    if digits is not None:
        return f"{number(100 * share, digits, signed=signed)} %"
    if 0 < share < 0.001:
        return "below 0.1 %"
    decimals = 1 if 0 < share < 0.01 else 0
    return f"{100 * share:{'+' if signed else ''}.{decimals}f} %"


def interval(low: float | None, high: float | None, show: Callable[[float], str] | None = None) -> str:
    """ "0.12 to 2", "55 to 70 %": the unit once; empty if an end is missing."""
    if low is None or high is None:
        return ""
    first, last = (number(end, 3) if show is None else show(end) for end in (low, high))
    return f"{first.removesuffix(' %')} to {last}"


def with_interval(value: float, low: float | None, high: float | None, show: Callable[[float], str]) -> str:
    """ "1.2 (0.9 to 1.4)"; the value alone if it has no interval."""
    ends = interval(low, high, show)
    return f"{show(value)} ({ends})" if ends else show(value)


def many(count: int, noun: str) -> str:
    """ "1 head", "1,024 tokens"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def heads_of(count: int, total: int, singular: str, plural: str) -> str:
    """Heads with their verb: "no head is", "1 of 48 heads is", "5 of 48 heads are", "all 48 heads are"."""
    if count == 0:
        return f"no head {singular}"
    if count == total:
        return f"the only head {singular}" if total == 1 else f"all {total} heads {plural}"
    return f"{count} of {total} heads {singular if count == 1 else plural}"


def listed(noun: str, numbers: Sequence[object]) -> str:
    """ "head 2", "heads 2, 3 and 6"."""
    *first, last = map(str, numbers)
    return f"{noun}s {', '.join(first)} and {last}" if first else f"{noun} {last}"


def tokens(count: float) -> str:
    """ "1 token", "20 tokens", "26.9 tokens"."""
    return f"{number(count, 3)} token{'' if count == 1 else 's'}"


def power_of_n(decay: float) -> str:
    """How a weight scales with n: "n^-0.19", or "n^0.05" if it grows."""
    return f"n^{-decay:.2f}"


def duration(seconds: float | None) -> str:
    """A duration in the two largest units: "48.9 s", "4 min 22 s", "17 h"; empty if it is not known."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    if seconds < 60:
        return f"{number(seconds, 3)} s"
    whole = round(seconds)
    minutes = round(whole / 60)
    parts = ((whole // 60, "min"), (whole % 60, "s")) if whole < 3600 else ((minutes // 60, "h"), (minutes % 60, "min"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def about(seconds: float) -> str:
    """An approximate time, such as "40 s", "3 min" or "2 h 5 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def data_size(count: float) -> str:
    """Bytes as text: "36 kB", "150 MB", "141 GB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{number(count / size, 3)} {unit}"
    return many(round(count), "byte")


def sentence(words: str) -> str:
    """The words with a capital letter."""
    return words[:1].upper() + words[1:]
