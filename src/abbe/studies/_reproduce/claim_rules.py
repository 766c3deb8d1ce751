"""Tools for the rules that judge claims: limits, power laws, other readings of "expected" and of the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from ...words.numbers import number
from .._engine.readings import DEFAULT, READINGS
from .result import Answer, Claim, Figure

LINEAR = (0.8, 1.2)  # exponents that count as "roughly linear", or as 1/T with the sign changed
CLEARLY = 0.05  # relative difference of two means that chance does not explain: random sets are drawn once per query
_PER_HEAD = ("head means", "each query")  # tests of as many numbers as there are heads

Judged = tuple[bool | None, float | None]  # whether it holds, and the number that decides


def slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Exponent of a power law: least squares of ln y on ln x; None for fewer than three points or y <= 0."""
    if len(x) < 3 or min(y) <= 0:
        return None
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def power(exponent: float | None) -> str:
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


def with_readings(
    claim: Claim, figure: Figure, number: str, judge: Callable[[pl.DataFrame], Judged], enough_heads: bool
) -> Claim:
    """The claim with its number under every other reading, and a sentence on whether the answer depends on it.

    `judge` gets the rows of one reading, embedding vectors and level 0.01, by length. The answer stays that of the
    default reading.
    """
    table = figure.tables.get("readings")
    if table is None or not table.height:
        return claim
    chosen = table.filter((pl.col("vectors") == "embedding") & (pl.col("level") == pl.col("level").min()))
    answers: dict[tuple[str, str], Answer] = {DEFAULT: claim.answer}
    numbers = dict(claim.numbers)
    for expected, test in READINGS:
        if (expected, test) == DEFAULT:
            continue
        rows = chosen.filter((pl.col("expected") == expected) & (pl.col("test") == test)).sort("length")
        holds, value = judge(rows)
        answers[expected, test] = answer(holds if enough_heads or test not in _PER_HEAD else None)
        numbers[f"{number}, {expected}, {test}"] = value
    return replace(claim, measured=f"{claim.measured}. {dependence(answers)}", numbers=numbers)


def dependence(answers: Mapping[tuple[str, str], Answer]) -> str:
    """One sentence: the same under every reading, or where it differs."""
    usual = answers[DEFAULT]
    others = [f"{expected} and {test} ({verdict})" for (expected, test), verdict in answers.items() if verdict != usual]
    if not others:
        return f"The verdict is the same under all {len(answers)} readings of “expected” and of the test"
    return f"The verdict depends on the reading: it differs for {'; '.join(others)}"
