"""What every head is, in one sentence, by the first rule that holds.

The kinds and their rules are ours; arXiv 2602.01893 has three others, Retriever, Mixer and Reset, by precision and
recall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...words.finding import Fact, Place
from ...words.numbers import percent, power_of_n, tokens
from ...words.thresholds import FADING, INDUCTION, NEAR_UNIFORM, PREVIOUS_TOKEN, SHARP, SINK, TIMES_UNIFORM
from .._engine.lookup import Cell, Lookup
from .result import HeadPattern, HeadVerdict


@dataclass(frozen=True)
class Facts:
    """The evidence for the verdict on one head, at the largest length."""

    tokens: int
    size: int | None
    sink: Cell | None
    entropy: Cell | None
    effective: Cell | None
    previous: Cell | None
    induction: Cell | None
    separability: Cell | None
    decay: Cell | None

    @property
    def entropy_share(self) -> float | None:
        return share_of_limit(self.entropy)

    def numbers(self) -> dict[str, Fact]:
        numbers: dict[str, Fact] = {
            "effective tokens": value_of(self.effective),
            "visible keys, on average": None if self.effective is None else self.effective.limit,
            "entropy over its ceiling": self.entropy_share,
            "weight on the first key": value_of(self.sink),
            "decay exponent": value_of(self.decay),
        }
        if self.size is not None:
            numbers[f"separability of {self.size} tokens"] = value_of(self.separability)
            numbers["its interval from"] = None if self.separability is None else self.separability.low
            numbers["of random sets"] = None if self.separability is None else self.separability.control
        for name, cell in (("previous token", self.previous), ("token after the previous copy", self.induction)):
            if cell is not None:
                numbers |= {f"weight on the {name}": cell.value, f"{name}, of a uniform head": cell.control}
        return numbers


def share_of_limit(cell: Cell | None) -> float | None:
    return None if cell is None or not cell.limit else cell.value / cell.limit


def value_of(cell: Cell | None) -> float | None:
    return None if cell is None else cell.value


def head_facts(table: Lookup) -> dict[Place, Facts]:
    longest, size = table.longest, table.size
    if longest is None:
        return {}
    measures = ("sink_mass", "entropy", "effective_tokens", "previous_token", "induction")
    columns = [table.heads(measure, longest) for measure in measures]
    columns += [table.heads("separability", longest, size), table.heads("decay_exponent")]
    return {place: Facts(longest, size, *(cells.get(place) for cells in columns)) for place in table.places}


def is_sink(facts: Facts) -> bool:
    return facts.sink is not None and facts.sink.value > SINK


def is_near_uniform(facts: Facts) -> bool:
    return facts.entropy_share is not None and facts.entropy_share >= NEAR_UNIFORM


def is_blurred(facts: Facts) -> bool:
    return no_better_than_random(facts.separability)


def no_better_than_random(separability: Cell | None) -> bool:
    """The interval reaches down to random sets; never where these are always separable, as sets of one are."""
    if separability is None or separability.control is None or separability.control >= 1:
        return False
    return separability.at_least <= separability.control


def is_fading(facts: Facts) -> bool:
    return facts.decay is not None and facts.decay.value >= FADING


def _is_sharp(facts: Facts) -> bool:
    return facts.effective is not None and facts.effective.value <= SHARP


@dataclass(frozen=True)
class _Kind:
    """A head is of the first kind whose test holds."""

    name: str
    test: Callable[[Facts], bool]
    rule: str
    sentence: Callable[[Facts], str]


def _sink(facts: Facts) -> str:
    return f"{percent(value_of(facts.sink))} of its weight goes to the first token it sees"


def _entropy(facts: Facts) -> str:
    return f"its entropy is {percent(facts.entropy_share)} of the ceiling at {facts.tokens:,} tokens"


def _separability(facts: Facts) -> str:
    cell = facts.separability
    if cell is None or cell.control is None:
        return "its selected sets could not be measured"
    ours, random = percent(cell.value), percent(cell.control)
    return f"{ours} of its top {tokens(facts.size or 0)} are separable from the rest, {random} of random ones"


def _decay(facts: Facts) -> str:
    return f"its largest weight scales as {power_of_n(value_of(facts.decay) or 0)} as the context grows"


def _spread(facts: Facts) -> str:
    spread = f"it spreads its weight as if over {tokens(value_of(facts.effective) or 0)}"
    return spread if facts.separability is None else f"{spread}; {_separability(facts)}"


_KINDS = (
    _Kind("sink", is_sink, f"more than {percent(SINK)} of the weight is on the first visible key", _sink),
    _Kind("uniform", is_near_uniform, f"the entropy is at least {percent(NEAR_UNIFORM)} of ln n", _entropy),
    _Kind("blurred", is_blurred, "the interval of the separability reaches down to random sets", _separability),
    _Kind("fading", is_fading, f"the decay exponent is at least {FADING:g} (a uniform head has 1)", _decay),
    _Kind("sharp", _is_sharp, f"at most {SHARP:g} effective tokens", _spread),
    _Kind("selective", lambda facts: facts.effective is not None, "it has an effective number of tokens", _spread),
)


def _patterns(facts: Facts) -> tuple[HeadPattern, ...]:
    """Previous-token head, induction head, both or none."""
    candidates = (
        ("previous-token head", facts.previous, PREVIOUS_TOKEN, "the token just before the query"),
        ("induction head", facts.induction, INDUCTION, "what followed the previous occurrence of the query's token"),
    )
    return tuple(
        HeadPattern(
            name,
            f"{name.capitalize()}: {percent(cell.value)} of its weight goes to {where}, {percent(cell.control)} of a "
            "uniform head's.",
            f"At {facts.tokens:,} tokens at least {percent(least)} of the weight is on {where}, and at least "
            f"{TIMES_UNIFORM} times as much as a uniform head gives it.",
        )
        for name, cell, least, where in candidates
        if cell is not None and cell.control is not None and cell.value >= max(least, TIMES_UNIFORM * cell.control)
    )


def head_verdicts(table: Lookup) -> tuple[HeadVerdict, ...]:
    """One sentence on every head."""
    return tuple(_verdict(place, facts) for place, facts in head_facts(table).items())


def _verdict(place: Place, facts: Facts) -> HeadVerdict:
    for position, kind in enumerate(_KINDS):
        if kind.test(facts):
            earlier = ", ".join(other.name for other in _KINDS[:position])
            excluded = f" No earlier rule holds ({earlier})." if earlier else ""
            sentence = f"{kind.name.capitalize()}: {kind.sentence(facts)}."
            rule = f"At {facts.tokens:,} tokens {kind.rule}.{excluded}"
            return HeadVerdict(*place, kind.name, sentence, rule, facts.numbers(), _patterns(facts))
    return HeadVerdict(*place, "not measured", "Not measured: no query gave a number.", "", facts.numbers())
