"""Heads: what each one is, by the first rule that holds, and where it crosses its limits.

The kinds and their rules are ours; arXiv 2602.01893 has three others, Retriever, Mixer and Reset, by precision and
recall. Limits are the lengths at which a head fades, and the temperature below which it is fragile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import polars as pl

from ...runs.lookup import Cell, Lookup
from ...words.finding import Fact, Place
from ...words.numbers import percent, power_of_n, tokens
from ...words.thresholds import (
    FADING,
    FAINT,
    FRAGILE,
    INDUCTION,
    NEAR_UNIFORM,
    PREVIOUS_TOKEN,
    SHARP,
    SINK,
    TIMES_UNIFORM,
)

_WORST = "sensitivity_worst_p95"
_FAR = 100.0  # times the largest length: farther nobody should extrapolate
_MOST_KEYS = 1e9  # longer than any context: a larger number says only that the spread is no limit
GROWTH_SCHEMA = {
    "layer": pl.Int32, "head": pl.Int32, "decay": pl.Float64, "decay_low": pl.Float64, "decay_high": pl.Float64,
    "uniform_from": pl.Int64, "random_from": pl.Int64, "weight": pl.Float64, "faint_at": pl.Float64,
    "half_until": pl.Float64,
}  # fmt: skip
FLOORS_SCHEMA = {
    "layer": pl.Int32, "head": pl.Int32, "floor": pl.Float64, "lowest": pl.Float64, "sensitivity": pl.Float64,
    "ceiling": pl.Float64,
}  # fmt: skip


@dataclass(frozen=True)
class HeadPattern:
    """A pattern that a head shows: "previous-token head" or "induction head"."""

    name: str
    sentence: str
    rule: str


@dataclass(frozen=True)
class HeadVerdict:
    """What one head is, in one sentence.

    Attributes:
        layer: from 0.
        head: from 0.
        kind: sink, uniform, blurred, fading, sharp, selective or not measured.
        sentence: the verdict.
        rule: by which it is decided.
        numbers: that the rule looks at.
        patterns: that it shows besides its kind.
    """

    layer: int
    head: int
    kind: str
    sentence: str
    rule: str
    numbers: Mapping[str, Fact]
    patterns: tuple[HeadPattern, ...] = ()


@dataclass(frozen=True)
class Facts:
    """The numbers of one head at one length."""

    tokens: int
    size: int | None
    sink: Cell | None
    entropy: Cell | None
    effective: Cell | None
    previous: Cell | None
    induction: Cell | None
    largest: Cell | None
    logit_range: Cell | None
    separability: Cell | None
    decay: Cell | None

    @property
    def entropy_share(self) -> float | None:
        cell = self.entropy
        return None if cell is None or not cell.limit else cell.value / cell.limit

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


# In the order of the fields of `Facts`.
_MEASURES = ("sink_mass", "entropy", "effective_tokens", "previous_token", "induction", "max_weight", "logit_range")


def value_of(cell: Cell | None) -> float | None:
    return None if cell is None else cell.value


def head_facts(table: Lookup, length: int | None) -> dict[Place, Facts]:
    """The numbers of every head at this length."""
    if length is None:
        return {}
    columns = [table.heads(measure, length) for measure in _MEASURES]
    columns += [table.heads("separability", length, table.size), table.heads("decay_exponent")]
    return {place: Facts(length, table.size, *(cells.get(place) for cells in columns)) for place in table.places}


def is_sink(facts: Facts) -> bool:
    return facts.sink is not None and facts.sink.value > SINK


def is_near_uniform(facts: Facts) -> bool:
    return facts.entropy_share is not None and facts.entropy_share >= NEAR_UNIFORM


def can_be_blurred(facts: Facts) -> bool:
    """Where random sets are always separable, as sets of one are, no head can do better."""
    cell = facts.separability
    return cell is not None and cell.control is not None and cell.control < 1


def is_blurred(facts: Facts) -> bool:
    """The interval of the separability reaches down to random sets."""
    cell = facts.separability
    return can_be_blurred(facts) and cell is not None and cell.at_least <= (cell.control or 0)


def is_fading(facts: Facts) -> bool:
    return facts.decay is not None and facts.decay.value >= FADING


def _is_sharp(facts: Facts) -> bool:
    return facts.effective is not None and facts.effective.value <= SHARP


def _separability(facts: Facts) -> str:
    cell = facts.separability
    if cell is None or cell.control is None:
        return "its selected sets could not be measured"
    ours, random = percent(cell.value), percent(cell.control)
    return f"{ours} of its top {tokens(facts.size or 0)} are separable from the rest, {random} of random ones"


def _spread(facts: Facts) -> str:
    spread = f"it spreads its weight as if over {tokens(value_of(facts.effective) or 0)}"
    return spread if facts.separability is None else f"{spread}; {_separability(facts)}"


@dataclass(frozen=True)
class _Kind:
    """A head is of the first kind whose test holds."""

    name: str
    holds: Callable[[Facts], bool]
    rule: str
    sentence: Callable[[Facts], str]


_KINDS = (
    _Kind(
        "sink",
        is_sink,
        f"more than {percent(SINK)} of the weight is on the first visible key",
        lambda facts: f"{percent(value_of(facts.sink))} of its weight goes to the first token it sees",
    ),
    _Kind(
        "uniform",
        is_near_uniform,
        f"the entropy is at least {percent(NEAR_UNIFORM)} of ln n",
        lambda facts: f"its entropy is {percent(facts.entropy_share)} of the ceiling at {facts.tokens:,} tokens",
    ),
    _Kind("blurred", is_blurred, "the interval of the separability reaches down to random sets", _separability),
    _Kind(
        "fading",
        is_fading,
        f"the decay exponent is at least {FADING:g} (a uniform head has 1)",
        lambda facts: f"its largest weight scales as {power_of_n(value_of(facts.decay) or 0)} as the context grows",
    ),
    _Kind("sharp", _is_sharp, f"at most {SHARP:g} effective tokens", _spread),
    _Kind("selective", lambda facts: facts.effective is not None, "none of the other kinds applies", _spread),
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


def head_verdicts(heads: Mapping[Place, Facts]) -> tuple[HeadVerdict, ...]:
    """One sentence on every head."""
    return tuple(_verdict(place, facts) for place, facts in heads.items())


def _verdict(place: Place, facts: Facts) -> HeadVerdict:
    kind = next((kind for kind in _KINDS if kind.holds(facts)), None)
    if kind is None:
        return HeadVerdict(*place, "not measured", "Not measured: no query gave a number.", "", facts.numbers())
    earlier = ", ".join(other.name for other in _KINDS[: _KINDS.index(kind)])
    excluded = f" ({earlier})." if kind is _KINDS[-1] else f". No earlier rule holds ({earlier})." if earlier else "."
    sentence = f"{kind.name.capitalize()}: {kind.sentence(facts)}."
    rule = f"At {facts.tokens:,} tokens {kind.rule}{excluded}"
    return HeadVerdict(*place, kind.name, sentence, rule, facts.numbers(), _patterns(facts))


def growth(table: Lookup) -> pl.DataFrame:
    """For every head: how fast its largest weight fades, and the lengths at which it crosses its limits.

    uniform_from, random_from: the first measured length at which its entropy is near the ceiling, or its separability
    no better than that of random sets. faint_at: where its largest weight would fall below 0.1 if it kept fading as
    measured (an extrapolation, given up to 100 times the largest length). half_until: the largest number of keys among
    which a query with this head's mean logit range R can give one key half of the weight, 1 + e^R, by the tight
    bound 1/(1 + (n - 1) e^-R); given up to 10^9. Other queries of the head have other ranges.
    """
    by_length = {length: head_facts(table, length) for length in table.lengths}
    rows = [_growth_row(place, [heads[place] for heads in by_length.values()]) for place in table.places]
    return pl.DataFrame(rows, schema=GROWTH_SCHEMA, orient="row")


def _growth_row(place: Place, by_length: Sequence[Facts]) -> tuple[Fact, ...]:
    if not by_length:
        return (*place, *(None,) * (len(GROWTH_SCHEMA) - 2))
    last = by_length[-1]
    decay, weight, spread = last.decay, last.largest, last.logit_range
    return (
        *place,
        *((None,) * 3 if decay is None else (decay.value, decay.low, decay.high)),
        next((facts.tokens for facts in by_length if is_near_uniform(facts)), None),
        next((facts.tokens for facts in by_length if is_blurred(facts)), None),
        value_of(weight),
        faint_at(weight, decay, last.tokens),
        None if spread is None or weight is None or weight.limit is None else keys_for_half(spread.value),
    )


def faint_at(weight: Cell | None, decay: Cell | None, longest: int) -> float | None:
    """w(L) = w (L/longest)^-gamma falls below FAINT at this L; None if gamma is not surely above 0, or L too far."""
    if weight is None or decay is None or decay.at_least <= 0:
        return None
    log_times = math.log(weight.value / FAINT) / decay.value
    return float(round(longest * math.exp(log_times))) if log_times <= math.log(_FAR) else None


def keys_for_half(spread: float) -> float | None:
    keys = math.floor(1 + math.exp(min(spread, 100)))
    return keys if keys <= _MOST_KEYS else None


def floors(table: Lookup) -> pl.DataFrame:
    """For every head: the temperature below which 95 % of the queries of a window no longer stay under FRAGILE.

    Between two measured temperatures the sensitivity is taken as a power law. floor is null where even the lowest
    measured temperature (`lowest`) is not fragile; `ceiling` is the proved largest sensitivity at T = 1.
    """
    names = {name for name, length, _ in table.of_heads if name.partition("@")[0] == _WORST and length == table.longest}
    by_temperature = {float(name.partition("@T=")[2] or 1): table.heads(name, table.longest) for name in names}
    rows: list[tuple[Fact, ...]] = []
    for place in table.places:
        points = [(t, heads[place].value) for t, heads in sorted(by_temperature.items()) if place in heads]
        at_one = table.heads(_WORST, table.longest).get(place)
        limit = None if at_one is None else at_one.limit
        rows.append((*place, fragile_below(points), points[0][0] if points else None, value_of(at_one), limit))
    return pl.DataFrame(rows, schema=FLOORS_SCHEMA, orient="row")


def fragile_below(points: list[tuple[float, float]]) -> float | None:
    """Where the sensitivity, from low to high temperature, was last at FRAGILE or above; None if it never was."""
    above = [i for i, (_, value) in enumerate(points) if value >= FRAGILE]
    if not above:
        return None
    t, value = points[above[-1]]
    if above[-1] + 1 == len(points):
        return t
    after, less = points[above[-1] + 1]
    if less <= 0:
        return t
    share = math.log(value / FRAGILE) / math.log(value / less)
    return float(t * (after / t) ** share)


def highest_and_median(floors: pl.DataFrame) -> tuple[float, float] | None:
    """Of the heads that become fragile; None if none does."""
    known = sorted(floors["floor"].drop_nulls().to_list())
    return (known[-1], median(known)) if known else None
