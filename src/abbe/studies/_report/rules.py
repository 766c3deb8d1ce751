"""The rules of a report: five numbers, verdicts and advice, each declared with its threshold, sentence and evidence.

The first verdict is whether attention has been learned at all: there is no advice on random or uniform weights. Either
sign is enough. Fresh initial weights are so small that attention is uniform in nearly all heads, as it is where queries
or keys are zero. Large random weights, or normalised queries and keys, give attention that looks selective without
having learned anything; then the loss is that of guessing. docs/explanation/report-rules.md has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

import polars as pl

from ...results import Run
from ...runs.lookup import Cell, Lookup
from ...words.finding import NOT_LEARNED, NOTICE, Fact, Finding, KeyNumber, Place
from ...words.names import BASELINE
from ...words.numbers import heads_of, many, number, percent, power_of_n, sentence, tokens
from ...words.thresholds import FADING, FRAGILE, NEAR_UNIFORM, SINK
from .alternatives import SHARPER, SPARSE
from .heads import (
    Facts,
    can_be_blurred,
    floors,
    head_facts,
    highest_and_median,
    is_blurred,
    is_fading,
    is_near_uniform,
    is_sink,
    value_of,
)
from .sample import Sample

LEVEL = 0.01  # of the test behind the critical N, as in the text of arXiv 2508.17821
UNIFORM_HEADS = 0.9  # of all heads near the entropy ceiling; at most 0.02 in trained models
GUESSING = 0.97  # of ln(vocabulary): untrained models had 0.995 and more in every window, trained ones at most 0.96
HALF = 0.5
KEPT = 0.9  # of the weight, by an active set that is large enough
GAIN = 0.05  # of the weight, moved to separable tokens: less is not worth a change
MOVED = 0.25  # of the output's length: a larger change makes it a different head
_EXAMPLES = 5  # fragile heads that the advice lists

Numbers = dict[str, Fact]


@dataclass(frozen=True)
class Group:
    """Heads for which something holds, among those for which it was measured."""

    places: tuple[Place, ...]
    measured: Mapping[Place, Facts]

    def counted(self, singular: str, plural: str) -> str:
        """ "5 of 48 heads are", with their verb."""
        return heads_of(len(self.places), len(self.measured), singular, plural)

    def numbers(self, name: str) -> Numbers:
        return {name: len(self.places), "heads": len(self.measured)}


class Evidence:
    """What the rules look at: the numbers of a run at its largest length, the alternatives, and the loss."""

    def __init__(self, run: Run, alternatives: pl.DataFrame, sample: Sample | None) -> None:
        self.table, self.alternatives = Lookup(run), alternatives
        self.longest, self.size = self.table.longest, self.table.size
        self.heads = head_facts(self.table, self.longest)
        self.floors = floors(self.table)
        self.loss, self.guessing = (None, None) if sample is None else (sample.loss, sample.guessing)

    def overall(self, measure: str, size: int | None = None) -> Cell | None:
        """The number of all heads together."""
        return self.table.overall(measure, self.longest, size)

    def _group(self, measured: Callable[[Facts], bool], holds: Callable[[Facts], bool]) -> Group:
        known = {place: facts for place, facts in self.heads.items() if measured(facts)}
        return Group(tuple(place for place, facts in known.items() if holds(facts)), known)

    @cached_property
    def near_uniform(self) -> Group:
        return self._group(lambda facts: facts.entropy_share is not None, is_near_uniform)

    @cached_property
    def forced(self) -> Group:
        """Heads whose logits are too close together for any key to get half of the weight."""
        return self._group(lambda facts: _ceiling(facts) is not None, lambda facts: (_ceiling(facts) or 0) < HALF)

    @cached_property
    def blurred(self) -> Group:
        return self._group(can_be_blurred, is_blurred)

    @cached_property
    def fading(self) -> Group:
        return self._group(lambda facts: facts.decay is not None, is_fading)

    @cached_property
    def sinks(self) -> Group:
        return self._group(lambda facts: facts.sink is not None, is_sink)

    @cached_property
    def all_uniform(self) -> bool:
        group = self.near_uniform
        return bool(group.measured) and len(group.places) >= UNIFORM_HEADS * len(group.measured)

    @property
    def guesses(self) -> bool:
        """Whether the next token is predicted no better than by guessing."""
        return self.loss is not None and self.guessing is not None and self.loss >= GUESSING * self.guessing

    @cached_property
    def p_values(self) -> dict[int, Cell]:
        """Of the test against random sets, by size."""
        cells = self.table.of_all.items()
        tested = {n: cell for (name, length, n), cell in cells if n and (name, length) == ("ks_p_value", self.longest)}
        return dict(sorted(tested.items()))

    @property
    def can_reject(self) -> bool:
        """Whether the test can reject at all: the smallest p-value of two samples of m heads is 2/C(2m, m)."""
        heads = max((len(self.table.heads("distance", self.longest, n)) for n in self.table.sizes), default=0)
        return 2 / math.comb(2 * heads, heads) <= LEVEL

    @property
    def critical(self) -> Cell | None:
        return self.overall(f"critical_n@{LEVEL:g}")

    @cached_property
    def masses(self) -> dict[int, Cell]:
        """The weight of the N largest keys by N, over all heads."""
        return top_masses(self.table)

    @property
    def enough(self) -> int | None:
        """The smallest measured set that keeps the weight, on average over heads."""
        return next((n for n, cell in self.masses.items() if cell.value >= KEPT), None)

    @property
    def shown_set(self) -> int:
        return max(self.masses) if self.enough is None else self.enough

    @cached_property
    def beyond(self) -> Group:
        """Heads that need a larger set than the average."""
        needed: dict[Place, int | None] = {}
        for n in self.table.sizes:
            for place, cell in self.table.heads("top_mass", self.longest, n).items():
                if needed.get(place) is None:
                    needed[place] = n if cell.value >= KEPT else None
        more = [place for place, n in needed.items() if n is None or (self.enough is not None and n > self.enough)]
        return Group(tuple(more), {place: self.heads[place] for place in needed})

    @cached_property
    def fragile(self) -> pl.DataFrame:
        """Heads that become fragile at some temperature, the first to do so first."""
        return self.floors.drop_nulls("floor").sort("floor", descending=True)

    @cached_property
    def highest_and_median(self) -> tuple[float | None, float | None]:
        """Temperature floor of the first and of the median head that becomes fragile."""
        return highest_and_median(self.floors) or (None, None)

    @cached_property
    def baseline(self) -> pl.DataFrame:
        return self.alternatives.filter(pl.col("normalizer") == BASELINE).drop_nulls("separable")

    @cached_property
    def sparser(self) -> pl.DataFrame:
        return could_be_sparser(self.alternatives, SPARSE)

    @cached_property
    def sharper(self) -> pl.DataFrame:
        """The control: heads for which a lower temperature does the same."""
        return could_be_sparser(self.alternatives, [SHARPER])


def _ceiling(facts: Facts) -> float | None:
    return None if facts.largest is None else facts.largest.limit


def top_masses(table: Lookup) -> dict[int, Cell]:
    """The weight of the N largest keys by N, over all heads at the largest length."""
    return {n: cell for n in table.sizes if (cell := table.overall("top_mass", table.longest, n)) is not None}


def could_be_sparser(alternatives: pl.DataFrame, specs: Collection[str]) -> pl.DataFrame:
    """The best of these alternatives for every head that would gain from one, the largest gain first."""
    sure = pl.col("gain_low").fill_null(pl.col("gain")) > 0
    chosen = alternatives.filter(
        pl.col("normalizer").is_in(list(specs)) & (pl.col("gain") >= GAIN) & sure & (pl.col("output_change") <= MOVED)
    )
    best = chosen.sort("gain", "normalizer", descending=[True, False]).unique(
        ["layer", "head"], keep="first", maintain_order=True
    )
    return best.sort("gain", "layer", "head", descending=[True, False, False])


def best_served(best: pl.DataFrame) -> pl.DataFrame:
    """How many of these heads each normalizer is the best for, most first."""
    return best.group_by("normalizer").len().sort("len", "normalizer", descending=[True, False])


@dataclass(frozen=True)
class Rule:
    """One finding: when there is something to say, the sentence, the rule in words, and the numbers behind it."""

    topic: str
    rule: str  # {longest} is the largest length
    holds: Callable[[Evidence], bool]
    sentence: Callable[[Evidence], str]
    numbers: Callable[[Evidence], Numbers]
    heads: Callable[[Evidence], tuple[Place, ...]] = lambda _: ()

    def finding(self, evidence: Evidence) -> Finding:
        words, rule = sentence(self.sentence(evidence)), self.rule.format(longest=f"{evidence.longest:,}")
        return Finding(self.topic, words, rule, self.numbers(evidence), self.heads(evidence))


def _with_interval(name: str, cell: Cell | None) -> Numbers:
    return {name: None, "interval from": None, "to": None} if cell is None else {
        name: cell.value, "interval from": cell.low, "to": cell.high,
    }  # fmt: skip


def _unlearned(e: Evidence) -> str:
    signs = []
    if e.all_uniform:
        words = e.near_uniform.counted("is", "are")
        signs.append(f"{words} within {percent(1 - NEAR_UNIFORM)} of the entropy ceiling at {e.longest:,} tokens")
    if e.guesses:
        losses = f"(loss {e.loss:.2f} nats, guessing {e.guessing:.2f})"
        signs.append(f"the next token is predicted no better than by guessing {losses}")
    return f"{NOTICE} {sentence(', and '.join(signs))}."


def _dispersion_numbers(e: Evidence) -> Numbers:
    group = e.near_uniform
    shares = [facts.entropy_share or 0.0 for facts in group.measured.values()]
    cells = [cell for place in group.places if (cell := group.measured[place].entropy) is not None]
    surely = sum(cell.low is not None and cell.low >= NEAR_UNIFORM * (cell.limit or 0) for cell in cells)
    return {
        "heads near the ceiling": len(group.places),
        "of these with the whole interval there": surely,
        "heads": len(group.measured),
        "mean entropy over its ceiling": sum(shares) / len(shares),
    }


def _forced_numbers(e: Evidence) -> Numbers:
    overall = e.overall("max_weight")
    return e.forced.numbers("heads that cannot") | {
        "largest weight, mean": value_of(overall),
        "its proved ceiling, mean": None if overall is None else overall.limit,
    }


def _against_chance(e: Evidence) -> str:
    if e.critical is None:
        return f"Selection differs from chance at every set size tried (up to {max(e.p_values)})."
    critical = int(e.critical.value)
    rejected_again = [n for n, p in e.p_values.items() if n > critical and p.value <= LEVEL]
    indistinguishable = "is statistically indistinguishable from random"
    if rejected_again:
        return f"Selecting {tokens(critical)} {indistinguishable}, but selecting {rejected_again[0]} is not."
    return f"From {tokens(critical)} on, selection {indistinguishable}."


def _chance_numbers(e: Evidence) -> Numbers:
    largest, critical = max(e.p_values), e.critical
    at = largest if critical is None else int(critical.value)
    numbers: Numbers = {"critical N": None if critical is None else at, "largest N tested": largest}
    if critical is not None:
        numbers |= {"interval from": critical.low, "to": critical.high}
    return numbers | {
        f"KS statistic at N = {at}": value_of(e.overall("ks_statistic", at)),
        f"p-value at N = {at}": value_of(e.p_values.get(at)),
    }


def _separable(e: Evidence) -> Cell | None:
    """The separability of all heads, where it can be compared with chance."""
    cell = e.overall("separability", e.size)
    return None if cell is None or cell.control is None else cell


def _separability(e: Evidence) -> str:
    overall = _separable(e)
    assert overall is not None
    counted = f"{e.blurred.counted('does', 'do')} no better than random"
    if not e.blurred.places:
        counted = f"every head does better than random{'' if overall.low is not None else ' (one window: no interval)'}"
    return (
        f"Of the {tokens(e.size or 0)} that a head weights most, {percent(overall.value)} are separable from "
        f"the rest, against {percent(overall.control)} of {e.size} random ones; {counted}."
    )


def _separability_numbers(e: Evidence) -> Numbers:
    overall = _separable(e)
    control = {"of random sets": None if overall is None else overall.control}
    return _with_interval("separability", overall) | control | e.blurred.numbers("heads no better than random")


def _length_numbers(e: Evidence) -> Numbers:
    decays = [facts.decay for facts in e.fading.measured.values() if facts.decay is not None]
    return _with_interval("mean decay exponent", e.table.overall("decay_exponent")) | {
        "heads that fade": len(e.fading.places),
        "heads whose interval reaches 0 or below": sum(decay.at_least <= 0 for decay in decays),
        "heads": len(e.fading.measured),
    }


def _sinks(e: Evidence) -> str:
    overall = e.overall("sink_mass")
    assert overall is not None
    uniform = "" if overall.control is None else f", a uniform head would give it {percent(overall.control)}"
    return (
        f"{e.sinks.counted('gives', 'give')} more than half of the weight to the first visible token; all heads "
        f"together give it {percent(overall.value)}{uniform}."
    )


def _sinks_numbers(e: Evidence) -> Numbers:
    overall = e.overall("sink_mass")
    control = {"of a uniform head": None if overall is None else overall.control}
    return _with_interval("weight on the first key", overall) | control | e.sinks.numbers("sinks")


def _gradients(e: Evidence) -> str:
    overall, (highest, _) = e.overall("sensitivity_worst_mean"), e.highest_and_median
    assert overall is not None
    assert overall.limit
    fragile = "no head becomes fragile at the temperatures tried"
    if highest is not None:
        fragile = f"the first head becomes fragile below T = {highest:.2f}"
    share = percent(overall.value / overall.limit)
    return f"At T = 1 the weights react with {share} of the largest possible sensitivity; {fragile}."


def _gradients_numbers(e: Evidence) -> Numbers:
    overall, (highest, middle) = e.overall("sensitivity_worst_mean"), e.highest_and_median
    return _with_interval("worst sensitivity at T = 1, mean", overall) | {
        "its ceiling": None if overall is None else overall.limit,
        "highest temperature at which a head is fragile": highest,
        "the same for the median head": middle,
        "heads that get fragile": e.fragile.height,
        "heads": e.floors.height,
    }


_A_SINK = f"A head is a sink if the mean weight of the first visible key is above {percent(SINK)} at that length."

VERDICTS = (
    Rule(
        NOT_LEARNED,
        f"At least {percent(UNIFORM_HEADS)} of the heads have a mean entropy of {percent(NEAR_UNIFORM)} of the mean of "
        f"ln n or more, or the loss on the window shown is at least {percent(GUESSING)} of ln V, the loss of guessing "
        "among all V tokens. For a trained model the second means that it cannot predict this text. Only causal "
        "language models have that loss.",
        holds=lambda e: e.all_uniform or e.guesses,
        sentence=_unlearned,
        numbers=lambda e: (
            e.near_uniform.numbers("heads near the entropy ceiling")
            | {"loss of the next token, nats": e.loss, "loss of guessing, nats": e.guessing}
        ),
        heads=lambda e: e.near_uniform.places,
    ),
    Rule(
        "dispersion",
        f"A head counts if its mean entropy at the largest length is at least {percent(NEAR_UNIFORM)} of the mean of "
        "ln n, n the keys that a query sees.",
        holds=lambda e: bool(e.near_uniform.measured),
        sentence=lambda e: (
            f"{e.near_uniform.counted('is', 'are')} within {percent(1 - NEAR_UNIFORM)} of the entropy ceiling at "
            f"{e.longest:,} tokens."
        ),
        numbers=_dispersion_numbers,
        heads=lambda e: e.near_uniform.places,
    ),
    Rule(
        "forced dispersion",
        "A head counts if the mean over queries of the tight ceiling 1/(1 + (n - 1) e^-R) of the largest weight is "
        "below 0.5, R the range of the query's logits. Single queries may have a higher ceiling.",
        holds=lambda e: bool(e.forced.measured),
        sentence=lambda e: (
            f"{e.forced.counted('has', 'have')} logits so close together that softmax cannot give any key half of the "
            f"weight, on average over queries, at {e.longest:,} tokens."
        ),
        numbers=_forced_numbers,
        heads=lambda e: e.forced.places,
    ),
    Rule(
        "random sets",
        "Critical N: the first size at which a two-sample Kolmogorov-Smirnov test of the heads' mean distances against "
        f"those of random sets does not reject at level {LEVEL:g} (arXiv 2508.17821). Not rejecting does not prove "
        "equality.",
        holds=lambda e: bool(e.p_values) and e.can_reject,
        sentence=_against_chance,
        numbers=_chance_numbers,
    ),
    Rule(
        "separability",
        "Separability: the share of the selected tokens whose weighted vectors lie no farther from their sum than the "
        "nearest unselected one. A head does no better than random if the interval of its separability reaches down to "
        "that of random sets.",
        holds=lambda e: _separable(e) is not None and bool(e.blurred.measured),
        sentence=_separability,
        numbers=_separability_numbers,
        heads=lambda e: e.blurred.places,
    ),
    Rule(
        "length",
        "A head fades if its decay exponent (least squares of the log of the largest weight on ln n) is at least "
        f"{FADING:g}; a uniform head has 1.",
        holds=lambda e: e.table.overall("decay_exponent") is not None and bool(e.fading.measured),
        sentence=lambda e: (
            f"As the context grows to {e.longest:,} tokens, the largest weight of a head scales as "
            f"{power_of_n(value_of(e.table.overall('decay_exponent')) or 0)} on average; "
            f"{e.fading.counted('fades', 'fade')} at least half as fast as a uniform head."
        ),
        numbers=_length_numbers,
        heads=lambda e: e.fading.places,
    ),
    Rule(
        "sinks",
        _A_SINK,
        holds=lambda e: e.overall("sink_mass") is not None and bool(e.sinks.measured),
        sentence=_sinks,
        numbers=_sinks_numbers,
        heads=lambda e: e.sinks.places,
    ),
    Rule(
        "gradients",
        "A head is fragile at a temperature where the 95th percentile of the worst-direction sensitivity over the "
        f"queries of a window (the mean of the windows' percentiles) reaches {FRAGILE:g} per logit, twice what any "
        "softmax row can reach at T = 1. No softmax head can be fragile above T = 0.5.",
        holds=lambda e: (cell := e.overall("sensitivity_worst_mean")) is not None and bool(cell.limit),
        sentence=_gradients,
        numbers=_gradients_numbers,
    ),
)


def _active_set(e: Evidence) -> str:
    held = percent(e.masses[e.shown_set].value)
    if e.enough is None:
        # More tokens do not help attention that was not learned.
        question = "" if e.all_uniform or e.guesses else "; how many the loss needs: abbe capacity"
        return f"Even {many(e.shown_set, 'key')} per query hold only {held} of the weight{question}."
    return (
        f"{many(e.enough, 'key')} per query {'holds' if e.enough == 1 else 'hold'} {held} of the weight, on average "
        f"over heads; {e.beyond.counted('needs', 'need')} more. How many the loss needs: abbe capacity."
    )


def _active_set_numbers(e: Evidence) -> Numbers:
    size = e.shown_set
    separable = e.overall("separability", size)
    return {
        "smallest size that keeps the weight": e.enough,
        **_with_interval(f"weight of the {size} largest", e.masses[size]),
        f"separability of {size} tokens": value_of(separable),
        "of random sets": None if separable is None else separable.control,
        **e.beyond.numbers("heads that need more"),
    }


def _temperature(e: Evidence) -> str:
    highest, middle = e.highest_and_median
    if highest is None:
        lowest = e.floors["lowest"].drop_nulls()[0]
        return f"No head becomes fragile down to T = {lowest:g}, the lowest temperature tried."
    layer, head = e.fragile.select("layer", "head").row(0)
    return (
        f"Keep the temperature above {highest:.2f}, where the first head (layer {layer}, head {head}) becomes fragile; "
        f"the median head does at {middle:.2f}."
    )


def _temperature_numbers(e: Evidence) -> Numbers:
    highest, middle = e.highest_and_median
    return {
        "temperature floor": highest,
        "the same for the median head": middle,
        "heads that get fragile": e.fragile.height,
        "heads": e.floors.height,
        "lowest temperature tried": e.floors["lowest"].drop_nulls()[0],
    }


def _sparse(e: Evidence) -> str:
    best = e.sparser
    if best.is_empty():
        return (
            "No head would gain from a sparse normalizer without a clearly different output, by an estimate from the "
            "same logits."
        )
    return (
        f"{heads_of(best.height, e.baseline.height, 'could', 'could')} be sparser: the best of {len(SPARSE)} sparse "
        f"normalizers puts another {percent(_mean(best, 'gain'))} of the weight on separable tokens and moves outputs "
        f"by {percent(_mean(best, 'output_change'))}; {SHARPER} alone does so for {e.sharper.height}. An estimate from "
        "the same logits: swapped in without calibration it can raise the loss."
    )


def _sparse_numbers(e: Evidence) -> Numbers:
    best = e.sparser
    numbers: Numbers = {
        "heads that could be sparser": best.height,
        "heads": e.baseline.height,
        "separable weight now, mean over heads": _mean(e.baseline, "separable"),
        f"heads that {SHARPER} might help by the same rule": e.sharper.height,
    }
    if best.is_empty():
        return numbers
    top = best.row(0, named=True)
    numbers |= {
        "mean gain of those heads": _mean(best, "gain"),
        "their outputs would move by": _mean(best, "output_change"),
        "largest gain": top["gain"], "of layer": top["layer"], "head": top["head"], "with": top["normalizer"],
    }  # fmt: skip
    control = best.select("layer", "head").join(
        e.alternatives.filter(pl.col("normalizer") == SHARPER), on=["layer", "head"]
    )
    if control.height:
        numbers |= {
            f"gain of those heads with {SHARPER} instead": _mean(control, "gain"),
            "whose outputs would move by": _mean(control, "output_change"),
        }
    return numbers | {f"heads best served by {spec}": count for spec, count in best_served(best).iter_rows()}


def _mean(table: pl.DataFrame, column: str) -> float | None:
    """Exactly rounded, so it does not depend on how the rows are chunked."""
    known = table[column].drop_nulls().to_list()
    return fmean(known) if known else None


ADVICE = (
    Rule(
        "active-set size",
        f"The smallest measured N whose keys of largest weight hold at least {percent(KEPT)} of the weight at "
        "{longest} tokens. Weight kept is not loss kept: a head may need the rest.",
        holds=lambda e: bool(e.beyond.measured and e.masses),
        sentence=_active_set,
        numbers=_active_set_numbers,
        heads=lambda e: e.beyond.places,
    ),
    Rule(
        "temperature floor",
        "The highest temperature, over heads, at which the 95th percentile of the worst-direction sensitivity over the "
        f"queries of a window reaches {FRAGILE:g} per logit. The logits are those of the model, divided by T; "
        "nothing was trained. Softmax cannot reach it above T = 0.5, whatever the model.",
        holds=lambda e: not e.floors["lowest"].drop_nulls().is_empty(),
        sentence=_temperature,
        numbers=_temperature_numbers,
        heads=lambda e: tuple(e.fragile.head(_EXAMPLES).select("layer", "head").iter_rows()),
    ),
    Rule(
        "sinks",
        _A_SINK,
        holds=lambda e: bool(e.sinks.measured),
        sentence=lambda e: (
            f"{e.sinks.counted('is a sink', 'are sinks')}: keep the first token in every active set, or train with a "
            "learned sink (normalizers sink, softmax1)."
            if e.sinks.places
            else "No head is a sink: nothing to do."
        ),
        numbers=lambda e: (
            e.sinks.numbers("sinks") | {"weight on the first key, all heads": value_of(e.overall("sink_mass"))}
        ),
        heads=lambda e: e.sinks.places,
    ),
    Rule(
        "sparse normalizer",
        "The same logits are renormalised by each sparse alternative. A head could be sparser if the share of its "
        f"weight on separable selected tokens rises by at least {percent(GAIN)}, with the interval of paired windows "
        f"(at most 4, so a narrow one) above 0, while its output moves by at most {percent(MOVED)} of its length. "
        "Later layers would see other inputs, and nothing was trained: abbe compare and abbe calibrate test it.",
        holds=lambda e: not e.baseline.is_empty(),
        sentence=_sparse,
        numbers=_sparse_numbers,
        heads=lambda e: tuple(e.sparser.select("layer", "head").iter_rows()),
    ),
)


def findings(evidence: Evidence, rules: Collection[Rule]) -> tuple[Finding, ...]:
    """What the rules say, as far as it was measured."""
    return tuple(rule.finding(evidence) for rule in rules if evidence.heads and rule.holds(evidence))


@dataclass(frozen=True)
class _Key:
    """A number of all heads at the largest length: its cell, the value as text, and what it means."""

    name: Callable[[Evidence], str]
    measure: str
    cell: Callable[[Evidence], Cell | None]
    shown: Callable[[Cell], str]
    meaning: Callable[[Evidence, Cell], str]

    def number(self, evidence: Evidence) -> KeyNumber:
        name, cell = self.name(evidence), self.cell(evidence)
        if cell is None:
            return _without_value(name, self.measure, "not measured", "No query gave this number.")
        numbers = (cell.value, cell.low, cell.high, cell.limit, cell.control)
        return KeyNumber(name, self.measure, *numbers, self.shown(cell), self.meaning(evidence, cell))


def _without_value(name: str, measure: str, shown: str, meaning: str) -> KeyNumber:
    return KeyNumber(name, measure, None, None, None, None, None, shown, meaning)


def _effective(e: Evidence, cell: Cell) -> str:
    """The mean with the median head and the range: a few spread heads move the mean of all."""
    heads = sorted(facts.effective.value for facts in e.heads.values() if facts.effective is not None)
    of_keys = "" if cell.limit is None else f", of {cell.limit:,.0f} that it sees on average"
    of_heads = ""
    if len(heads) > 1:
        low, middle, high = (number(count, 3) for count in (heads[0], median(heads), heads[-1]))
        of_heads = f"; the median head over {middle}, with heads from {low} to {high}"
    return f"A query spreads its weight as if equally over {tokens(cell.value)}{of_keys}{of_heads}."


_NUMBERS = (
    _Key(
        lambda _: "effective tokens",
        "effective_tokens",
        lambda e: e.overall("effective_tokens"),
        lambda cell: tokens(cell.value),
        _effective,
    ),
    _Key(
        lambda e: f"separability of {e.size} tokens" if e.size else "separability",
        "separability",
        lambda e: e.overall("separability", e.size),
        lambda cell: percent(cell.value),
        lambda e, cell: (
            f"The share of the top {tokens(e.size or 0)} that is separable from the rest"
            + ("." if cell.control is None else f"; of {tokens(e.size or 0)} drawn at random: {percent(cell.control)}.")
        ),
    ),
    _Key(
        lambda _: "decay exponent",
        "decay_exponent",
        lambda e: e.table.overall("decay_exponent"),
        lambda cell: f"{cell.value:.2f}",
        lambda _, cell: (
            f"The largest weight of a head scales as {power_of_n(cell.value)} with the n keys it sees; a uniform "
            "head's as n^-1."
        ),
    ),
    _Key(
        lambda _: "worst sensitivity",
        "sensitivity_worst_mean",
        lambda e: e.overall("sensitivity_worst_mean"),
        lambda cell: f"{cell.value:.2g} per logit",
        lambda _, cell: (
            "How far the weights move for a unit change of the logits in the worst direction"
            + ("." if cell.limit is None else f"; the proved ceiling is {cell.limit:.3g} on average over queries.")
        ),
    ),
)


def key_numbers(evidence: Evidence) -> tuple[KeyNumber, ...]:
    """Effective tokens, separability, critical N, decay exponent, sensitivity: all heads, at the largest length."""
    effective, separability, decay, sensitivity = (key.number(evidence) for key in _NUMBERS)
    return effective, separability, _critical_number(evidence), decay, sensitivity


def _critical_number(e: Evidence) -> KeyNumber:
    """Here a missing value says something: no size is critical, or the test cannot say."""
    named, critical = ("critical N", f"critical_n@{LEVEL:g}"), e.critical
    if not e.p_values:
        return _without_value(*named, "not measured", "No query gave this number.")
    if not e.can_reject:
        meaning = f"With so few heads the test cannot distinguish anything from chance at level {LEVEL:g}."
        return _without_value(*named, "too few heads", meaning)
    if critical is None:
        meaning = f"Up to {max(e.p_values)} selected tokens, the heads' distances differ from those of random sets."
        return _without_value(*named, f"none up to {max(e.p_values)}", meaning)
    size = tokens(critical.value)
    meaning = f"With {size} selected, the heads' distances are first indistinguishable from random sets."
    return KeyNumber(*named, critical.value, critical.low, critical.high, None, None, size, meaning)
