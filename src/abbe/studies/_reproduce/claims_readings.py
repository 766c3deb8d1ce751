"""Whether a verdict on critical N depends on how "expected" and the test are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import polars as pl

from .._engine.readings import DEFAULT, READINGS
from .claim_rules import answer
from .result import Answer, Claim, Figure

Judged = tuple[bool | None, float | None]  # whether it holds, and the number that decides
_PER_HEAD = ("head means", "each query")  # tests of as many numbers as there are heads


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
    """One sentence: the same under every reading, or under which it is another."""
    usual = answers[DEFAULT]
    others = [f"{expected} and {test} ({verdict})" for (expected, test), verdict in answers.items() if verdict != usual]
    if not others:
        return f"The verdict is the same under all {len(answers)} readings of “expected” and of the test"
    return f"The verdict depends on the reading: another one with {'; '.join(others)}"
