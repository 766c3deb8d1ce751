"""Numbers as parts keep them, and estimates as columns of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Estimate = tuple[float, float | None, float | None]  # value, low, high; None where there is no interval


def ends(name: str, estimate: Estimate) -> dict[str, float | None]:
    """Three columns: the value, and with _low and _high its interval."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), estimate, strict=True))


def with_nan(values: Sequence[float | None]) -> list[float]:
    """NaN where a number was not finite, which JSON knows as null."""
    return [math.nan if value is None else value for value in values]


def without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    """None where a number is not finite."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
