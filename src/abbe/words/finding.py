"""Findings of studies: key numbers, and sentences with the rule and the numbers that they rest on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Fact = float | int | str | None
Place = tuple[int, int]  # layer, head

NOT_LEARNED = "hardly learned"  # topic of the verdict that withdraws all advice
NOTICE = "Attention has hardly been learned: the advice below does not apply."


@dataclass(frozen=True)
class KeyNumber:
    """One of the few numbers that matter, over all heads at the largest length; None if it could not be measured.

    Attributes:
        name: for people.
        measure: in tables.
        value: that was measured.
        low: lower end of its interval.
        high: upper end of its interval.
        limit: that is proved.
        control: of random sets.
        shown: the value as text, such as "7.9 tokens" or "none up to 100".
        meaning: what it says, and its limit or control, in one sentence.
    """

    name: str
    measure: str
    value: float | None
    low: float | None
    high: float | None
    limit: float | None
    control: float | None
    shown: str
    meaning: str


@dataclass(frozen=True)
class Finding:
    """A verdict or a piece of advice: one plain sentence, and what it rests on.

    Attributes:
        topic: in a few words.
        sentence: for people.
        rule: by which it is decided.
        numbers: that the rule uses.
        heads: that it is about, as (layer, head).
    """

    topic: str
    sentence: str
    rule: str
    numbers: Mapping[str, Fact] = field(default_factory=dict)
    heads: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The answer on the first screen: one sentence.

    Attributes:
        grade: "good", "look" or "bad".
        sentence: for people.
        rule: by which it is decided.
    """

    grade: str
    sentence: str
    rule: str


@dataclass(frozen=True)
class Step:
    """What to do next.

    Attributes:
        words: for people.
        command: that does it, as it is typed.
    """

    words: str
    command: str


def findings_from(content: Iterable[Mapping[str, Any]]) -> tuple[Finding, ...]:
    """Findings from their `asdict` form."""
    return tuple(
        Finding(one["topic"], one["sentence"], one["rule"], one["numbers"], tuple((a, b) for a, b in one["heads"]))
        for one in content
    )
