"""What studies say: numbers that matter, and sentences with the rule and the numbers that they rest on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Fact = float | int | str | None
Place = tuple[int, int]  # layer, head

NOT_LEARNED = "hardly learned"  # topic of the verdict that takes all advice back
NOTICE = "Attention has hardly been learned: the advice below does not apply."


@dataclass(frozen=True)
class KeyNumber:
    """One of the few numbers that matter, over all heads at the largest length; None where it could not be measured.

    Attributes:
        name: for people.
        measure: in tables.
        value: that was measured.
        low: lower end of its interval.
        high: upper end of its interval.
        limit: that is proved.
        control: of random sets.
        shown: the value as a person reads it, such as "7.9 tokens" or "none up to 100".
        meaning: what it says, and beside which limit or control, in one sentence.
    """

    name: str
    measure: str
    value: float | None
    low: float | None
    high: float | None
    limit: float | None
    control: float | None
    shown: str  # the value as a person reads it, such as "7.9 tokens" or "none up to 100"
    meaning: str  # what it says, and beside which limit or control, in one sentence


@dataclass(frozen=True)
class Finding:
    """A verdict or an advice: one plain sentence, and what it rests on.

    Attributes:
        topic: in a few words.
        sentence: that says it.
        rule: by which it is decided.
        numbers: that the rule looks at.
        heads: that it is about, as (layer, head).
    """

    topic: str
    sentence: str
    rule: str
    numbers: Mapping[str, Fact] = field(default_factory=dict)
    heads: tuple[Place, ...] = ()


def findings_from(content: Iterable[Mapping[str, Any]]) -> tuple[Finding, ...]:
    """From what `asdict` made of them."""
    return tuple(
        Finding(one["topic"], one["sentence"], one["rule"], one["numbers"], tuple((a, b) for a, b in one["heads"]))
        for one in content
    )
