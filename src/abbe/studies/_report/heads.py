"""Heads: the numbers of each one, what it is by the first rule that holds, and where it crosses its limits.

The kinds and their rules are ours; arXiv 2602.01893 has three others, Retriever, Mixer and Reset, by precision and
recall. Limits are the lengths at which a head fades, and the temperature below which it is fragile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...words.finding import Fact, Place
from ...words.numbers import percent, power_of_n, tokens

NEAR_UNIFORM = 0.95  # of the entropy ceiling
SINK = 0.5  # of the weight on the first visible key
FADING = 0.5  # decay exponent; a uniform head has 1
SHARP = 3.0  # effective tokens
FAINT = 0.1  # a largest weight that no longer stands out
PREVIOUS_TOKEN = 0.3  # of the weight on the token before the query
INDUCTION = 0.1  # of the weight on the token after the last copy; in text, most copies predict nothing
TIMES_UNIFORM = 5  # least weight of a pattern over that of a uniform head: in short windows any head has some there
FRAGILE = 1.0  # weight per logit: twice what any softmax row can reach at T = 1

_WORST = "sensitivity_worst_p95"
_FAR = 100.0  # times the largest length: farther nobody should extrapolate
_MOST_KEYS = 1e9  # longer than any context: a larger number says only that the spread is no limit


@dataclass(frozen=True)
class HeadPattern:
    """A pattern that a head shows.

    Attributes:
        name: "previous-token head" or "induction head".
        sentence: for people.
        rule: by which it is decided.
    """

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
class Cell:
    """The numbers of one row of the table, each None where there is none."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    control: float | None = None

    @property
    def at_least(self) -> float:
        """The low end of the interval, or the value if there is none."""
        return (self.value or 0.0) if self.low is None else self.low


NOTHING = Cell()
Cells = dict[tuple[str, int | None, int | None], Cell]  # by measure, length and set size


@dataclass(frozen=True)
class Head:
    """The finite numbers of one head, or of all heads together, seen at one length; `size` is that of shown sets."""

    cells: Cells
    tokens: int
    size: int | None

    def cell(self, measure: str, n: int | None = None) -> Cell:
        return self.cells.get((measure, None if measure == "decay_exponent" else self.tokens, n), NOTHING)

    def value(self, measure: str) -> float | None:
        return self.cell(measure).value

    def by_size(self, measure: str) -> dict[int, Cell]:
        named = {n: x for (name, length, n), x in self.cells.items() if n and (name, length) == (measure, self.tokens)}
        return dict(sorted(named.items()))

    @property
    def separability(self) -> Cell:
        return self.cell("separability", self.size)

    @property
    def entropy_share(self) -> float | None:
        cell = self.cell("entropy")
        return cell.value / cell.limit if cell.value is not None and cell.limit else None

    def numbers(self) -> dict[str, Fact]:
        numbers: dict[str, Fact] = {
            "effective tokens": self.value("effective_tokens"),
            "visible keys, on average": self.cell("effective_tokens").limit,
            "entropy over its ceiling": self.entropy_share,
            "weight on the first key": self.value("sink_mass"),
            "decay exponent": self.value("decay_exponent"),
        }
        if self.size is not None:
            cell = self.separability
            numbers |= {f"separability of {self.size} tokens": cell.value, "its interval from": cell.low}
            numbers |= {"of random sets": cell.control}
        for name, measure in (("previous token", "previous_token"), ("token after the previous copy", "induction")):
            if (cell := self.cell(measure)).value is not None:
                numbers |= {f"weight on the {name}": cell.value, f"{name}, of a uniform head": cell.control}
        return numbers


# -- Kinds: a test is None for a head that lacks the number -----------------------------------------------------------


def is_sink(head: Head) -> bool | None:
    mass = head.value("sink_mass")
    return None if mass is None else mass > SINK


def is_near_uniform(head: Head) -> bool | None:
    share = head.entropy_share
    return None if share is None else share >= NEAR_UNIFORM


def is_blurred(head: Head) -> bool | None:
    """The interval of the separability reaches down to random sets.

    Where these are always separable, as sets of one are, no head can do better.
    """
    cell = head.separability
    return None if cell.control is None or cell.control >= 1 else cell.at_least <= cell.control


def is_sharp(head: Head) -> bool:
    return (head.value("effective_tokens") or math.inf) <= SHARP


def is_fading(head: Head) -> bool | None:
    decay = head.value("decay_exponent")
    return None if decay is None else decay >= FADING


def _to_first(head: Head) -> str:
    return f"{percent(head.value('sink_mass'))} of its weight goes to the first token it sees"


def _entropy(head: Head) -> str:
    return f"its entropy is {percent(head.entropy_share)} of the ceiling at {head.tokens:,} tokens"


def _decay(head: Head) -> str:
    return f"its largest weight scales as {power_of_n(head.value('decay_exponent') or 0)} as the context grows"


def _separability(head: Head) -> str:
    cell = head.separability
    if cell.control is None:
        return "its selected sets could not be measured"
    ours, random = percent(cell.value), percent(cell.control)
    return f"{ours} of its top {tokens(head.size or 0)} are separable from the rest, {random} of random ones"


def _spread(head: Head) -> str:
    spread = f"it spreads its weight as if over {tokens(head.value('effective_tokens') or 0)}"
    return spread if head.separability is NOTHING else f"{spread}; {_separability(head)}"


_Test = Callable[[Head], bool | None]
_Words = Callable[[Head], str]
_KINDS: tuple[tuple[str, _Test, str, _Words], ...] = (  # a head is of the first kind whose test holds
    ("sink", is_sink, f"more than {percent(SINK)} of the weight is on the first visible key", _to_first),
    ("uniform", is_near_uniform, f"the entropy is at least {percent(NEAR_UNIFORM)} of ln n", _entropy),
    ("blurred", is_blurred, "the interval of the separability reaches down to random sets", _separability),
    ("fading", is_fading, f"the decay exponent is at least {FADING:g} (a uniform head has 1)", _decay),
    ("sharp", is_sharp, f"it has at most {SHARP:g} effective tokens", _spread),
    ("selective", lambda head: head.value("effective_tokens") is not None, "none of the other kinds applies", _spread),
)
_PATTERNS = (
    ("previous-token head", "previous_token", PREVIOUS_TOKEN, "the token just before the query"),
    ("induction head", "induction", INDUCTION, "what followed the previous occurrence of the query's token"),
)


def head_verdict(place: Place, head: Head) -> HeadVerdict:
    """One sentence on a head."""
    earlier: list[str] = []
    for kind, holds, why, words in _KINDS:
        if holds(head):
            last = kind == _KINDS[-1][0]
            excluded = f" ({', '.join(earlier)})"
            excluded = excluded if last else f", and none of the kinds before it{excluded} applies"
            rule = f"At {head.tokens:,} tokens {why}{excluded if earlier else ''}."
            sentence = f"{kind.capitalize()}: {words(head)}."
            return HeadVerdict(*place, kind, sentence, rule, head.numbers(), _patterns(head))
        earlier.append(kind)
    return HeadVerdict(*place, "not measured", "Not measured: no query gave a number.", "", head.numbers())


def _patterns(head: Head) -> tuple[HeadPattern, ...]:
    """Previous-token head, induction head, both or none."""
    shown = []
    for name, measure, least, where in _PATTERNS:
        cell = head.cell(measure)
        if cell.value is None or cell.control is None or cell.value < max(least, TIMES_UNIFORM * cell.control):
            continue
        sentence = f"{percent(cell.value)} of its weight goes to {where}, {percent(cell.control)} of a uniform head's."
        rule = (
            f"At {head.tokens:,} tokens at least {percent(least)} of the weight is on {where}, and at least "
            f"{TIMES_UNIFORM} times as much as a uniform head gives it."
        )
        shown.append(HeadPattern(name, f"{name.capitalize()}: {sentence}", rule))
    return tuple(shown)


# -- Limits -----------------------------------------------------------------------------------------------------------


def growth(by_length: Sequence[Head]) -> dict[str, Fact]:
    """How fast the largest weight of a head fades, and the lengths at which it crosses its limits.

    uniform_from, random_from: the first measured length at which its entropy is near the ceiling, or its separability
    no better than that of random sets. faint_at: where its largest weight would fall below 0.1 if it kept fading as
    measured (an extrapolation, given up to 100 times the largest length). half_until: the largest number of keys among
    which a query with this head's mean logit range R can give one key half of the weight, 1 + e^R, by the tight
    bound 1/(1 + (n - 1) e^-R); given up to 10^9. Other queries of the head have other ranges.
    """
    last = by_length[-1]
    decay, weight, spread = (last.cell(name) for name in ("decay_exponent", "max_weight", "logit_range"))
    limited = spread.value is not None and weight.limit is not None
    keys = math.floor(1 + math.exp(min(spread.value or 0.0, 100))) if limited else math.inf
    return {
        "decay": decay.value,
        "decay_low": decay.low,
        "decay_high": decay.high,
        "uniform_from": next((head.tokens for head in by_length if is_near_uniform(head)), None),
        "random_from": next((head.tokens for head in by_length if is_blurred(head)), None),
        "weight": weight.value,
        "faint_at": _faint_at(weight, decay, last.tokens),
        "half_until": keys if keys <= _MOST_KEYS else None,
    }


def _faint_at(weight: Cell, decay: Cell, longest: int) -> float | None:
    """w(L) = w (L/longest)^-gamma falls below FAINT at this L; None if gamma is not surely above 0, or L too far."""
    if weight.value is None or not decay.value or decay.at_least <= 0:
        return None
    log_times = math.log(weight.value / FAINT) / decay.value
    return float(round(longest * math.exp(log_times))) if log_times <= math.log(_FAR) else None


def floor(head: Head) -> dict[str, Fact]:
    """The temperature below which 95 % of the queries of a window no longer stay under FRAGILE.

    Between two measured temperatures the sensitivity is taken as a power law. floor is null where even the lowest
    measured temperature (`lowest`) is not fragile; `ceiling` is the proved largest sensitivity at T = 1.
    """
    points = sorted(
        (float(name.partition("@T=")[2] or 1), cell.value or 0.0)
        for (name, length, _), cell in head.cells.items()
        if name.partition("@")[0] == _WORST and length == head.tokens
    )
    at_one, lowest = head.cell(_WORST), points[0][0] if points else None
    return {"floor": _fragile_below(points), "lowest": lowest, "sensitivity": at_one.value, "ceiling": at_one.limit}


def _fragile_below(points: Sequence[tuple[float, float]]) -> float | None:
    """Where the sensitivity, from low to high temperature, was last at FRAGILE or above; None if it never was."""
    above = [i for i, (_, value) in enumerate(points) if value >= FRAGILE]
    if not above:
        return None
    t, value = points[above[-1]]
    after, less = points[above[-1] + 1] if above[-1] + 1 < len(points) else (t, 0.0)
    if less <= 0:
        return t
    share = math.log(value / FRAGILE) / math.log(value / less)
    return float(t * (after / t) ** share)
