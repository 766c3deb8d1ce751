"""What the rules of claims share: limits that several use, power laws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from ...words.numbers import number
from .result import Answer

LINEAR = (0.8, 1.2)  # exponents that count as "roughly linear", or as 1/T with the sign changed
CLEARLY = 0.05  # relative difference of two means that chance does not explain: random sets are drawn once a query


def slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Exponent of a power law: least squares of ln y on ln x; None for fewer than three points or y <= 0."""
    if len(x) < 3 or min(y) <= 0:
        return None
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def power(exponent: float | None) -> str:
    """An exponent as it is read."""
    return number(exponent, 3, missing="unknown")


def answer(holds: bool | None) -> Answer:
    if holds is None:
        return "cannot be judged"
    return "holds" if holds else "does not hold"


def inside(value: float | None, limits: tuple[float, float]) -> bool | None:
    return None if value is None else limits[0] <= value <= limits[1]


def line_of(table: pl.DataFrame, axis: str, series: str, vectors: str | None = "embedding") -> dict[int, float]:
    """The values of one series, by length or size."""
    chosen = table.filter(pl.col("series") == series)
    if vectors is not None:
        chosen = chosen.filter(pl.col("vectors") == vectors)
    return dict(chosen.sort(axis).select(axis, "value").iter_rows())
