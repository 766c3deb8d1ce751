"""The rules of a report: five numbers, verdicts and advice. Each rule is a function that gives its finding, or None.

The first verdict is whether attention has been learned at all: there is no advice on random or uniform weights. Either
sign is enough. Fresh initial weights are so small that attention is uniform in nearly all heads, as it is where queries
or keys are zero. Large random weights, or normalised queries and keys, give attention that looks selective without
having learned anything; then the loss is that of guessing. docs/explanation/report-rules.md has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import polars as pl

from ...words.finding import NOT_LEARNED, NOTICE, Fact, Finding, KeyNumber, Place
from ...words.measures import usual_size
from ...words.names import BASELINE
from ...words.numbers import heads_of, many, number, percent, power_of_n, sentence, tokens
from .alternatives import SHARPER, SPARSE
from .heads import (
    FADING,
    FRAGILE,
    NEAR_UNIFORM,
    NOTHING,
    SINK,
    Cell,
    Cells,
    Head,
    floor,
    is_blurred,
    is_fading,
    is_near_uniform,
    is_sink,
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
_A_SINK = f"A head is a sink if the mean weight of the first visible key is above {percent(SINK)} at that length."


@dataclass(frozen=True)
class Group:
    """Heads for which something holds, among those for which it was measured."""

    places: tuple[Place, ...]
    measured: Collection[Head]

    def counted(self, singular: str, plural: str) -> str:
        """ "5 of 48 heads are", with their verb."""
        return heads_of(len(self.places), len(self.measured), singular, plural)

    def numbers(self, name: str, **more: Fact) -> dict[str, Fact]:
        return {name: len(self.places), **more, "heads": len(self.measured)}


class Evidence:
    """What the rules look at: the numbers of a run at its largest length, floors, alternatives, and the loss.

    `all` are the numbers of all heads together, `heads` those of each.
    """

    def __init__(
        self, table: pl.DataFrame, alternatives: pl.DataFrame, sample: Sample | None, in_place: Collection[str] = ()
    ) -> None:
        self.in_place = "; ".join(in_place)  # normalizers of the heads; empty for softmax
        names = ("layer", "head", "measure", "length", "n", "value", "low", "high", "limit", "control")
        cells: dict[tuple[int | None, int | None], Cells] = {}
        for layer, head, measure, length, n, *numbers in (
            table.filter(pl.col("value").is_finite()).select(names).iter_rows()
        ):
            cells.setdefault((layer, head), {})[measure, length, n] = Cell(*numbers)
        self.alternatives, self.size = alternatives, usual_size(table)
        self.lengths = sorted({at for (layer, _), of in cells.items() if layer is not None for _, at, _ in of if at})
        self.longest = self.lengths[-1] if self.lengths else 0
        self.all = Head(cells.get((None, None), {}), self.longest, self.size)
        places = table.select("layer", "head").drop_nulls().unique().sort("layer", "head").rows()
        self.heads: dict[Place, Head] = {at: Head(cells.get(at, {}), self.longest, self.size) for at in places}
        self.floors: list[dict[str, Any]] = [
            {"layer": at[0], "head": at[1], **floor(head)} for at, head in self.heads.items()
        ]
        self.fragile = sorted((row for row in self.floors if row["floor"]), key=lambda row: -row["floor"])
        self.highest_floor = self.fragile[0]["floor"] if self.fragile else None
        self.middle_floor = median(row["floor"] for row in self.fragile) if self.fragile else None
        self.loss, self.guessing = (None, None) if sample is None else (sample.loss, sample.guessing)
        self.sinks, self.near_uniform = self.group(is_sink), self.group(is_near_uniform)
        measured = len(self.near_uniform.measured)
        self.all_uniform = bool(measured) and len(self.near_uniform.places) >= UNIFORM_HEADS * measured
        self.guesses = self.loss is not None and self.guessing is not None and self.loss >= GUESSING * self.guessing
        self.masses, self.p_values = self.all.by_size("top_mass"), self.all.by_size("ks_p_value")
        self.critical = self.all.cell(f"critical_n@{LEVEL:g}")

    def group(self, test: Callable[[Head], bool | None]) -> Group:
        known = {place: holds for place, head in self.heads.items() if (holds := test(head)) is not None}
        places = tuple(place for place, holds in known.items() if holds)
        return Group(places, [self.heads[place] for place in known])

    @property
    def can_reject(self) -> bool:
        """Whether the test can reject at all: the smallest p-value of two samples of m heads is 2/C(2m, m)."""
        sized = [n for head in self.heads.values() for n in head.by_size("distance")]
        heads = max((sized.count(n) for n in set(sized)), default=0)
        return 2 / math.comb(2 * heads, heads) <= LEVEL


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


def findings(evidence: Evidence, rules: Collection[Callable[[Evidence], Finding | None]]) -> tuple[Finding, ...]:
    """What the rules say, as far as it was measured."""
    return tuple(finding for rule in rules if (finding := rule(evidence)) is not None)


def _with_interval(name: str, cell: Cell) -> dict[str, Fact]:
    return {name: cell.value, "interval from": cell.low, "to": cell.high}


# -- Verdicts ---------------------------------------------------------------------------------------------------------


def _learned(e: Evidence) -> Finding | None:
    signs = []
    if e.all_uniform:
        near = f"within {percent(1 - NEAR_UNIFORM)} of the entropy ceiling at {e.longest:,} tokens"
        signs.append(f"{e.near_uniform.counted('is', 'are')} {near}")
    if e.guesses:
        losses = f"(loss {e.loss:.2f} nats, guessing {e.guessing:.2f})"
        signs.append(f"the next token is predicted no better than by guessing {losses}")
    if not signs:
        return None
    return Finding(
        NOT_LEARNED,
        f"{NOTICE} {sentence(', and '.join(signs))}.",
        f"At least {percent(UNIFORM_HEADS)} of the heads have a mean entropy of {percent(NEAR_UNIFORM)} of the mean of "
        f"ln n or more, or the loss on the window shown is at least {percent(GUESSING)} of ln V, the loss of guessing "
        "among all V tokens. For a trained model the second means that it cannot predict this text. Only causal "
        "language models have that loss.",
        e.near_uniform.numbers("heads near the entropy ceiling")
        | {"loss of the next token, nats": e.loss, "loss of guessing, nats": e.guessing},
        e.near_uniform.places,
    )


def _dispersion(e: Evidence) -> Finding | None:
    group = e.near_uniform
    if not group.measured:
        return None
    cells = [e.heads[place].cell("entropy") for place in group.places]
    surely = sum(cell.low is not None and cell.low >= NEAR_UNIFORM * (cell.limit or 0) for cell in cells)
    shares = [head.entropy_share or 0.0 for head in group.measured]
    return Finding(
        "dispersion",
        f"{sentence(group.counted('is', 'are'))} within {percent(1 - NEAR_UNIFORM)} of the entropy ceiling at "
        f"{e.longest:,} tokens.",
        f"A head counts if its mean entropy at the largest length is at least {percent(NEAR_UNIFORM)} of the mean of "
        "ln n, n the keys that a query sees.",
        group.numbers("heads near the ceiling", **{"of these with the whole interval there": surely})
        | {"mean entropy over its ceiling": sum(shares) / len(shares)},
        group.places,
    )


def _forced_dispersion(e: Evidence) -> Finding | None:
    def cannot(head: Head) -> bool | None:
        ceiling = head.cell("max_weight").limit
        return None if ceiling is None else ceiling < HALF

    group, overall = e.group(cannot), e.all.cell("max_weight")
    if not group.measured and not e.in_place:
        return None
    if not group.measured:
        return Finding(
            "forced dispersion",
            "How sharp the weights can be does not follow from the range of the logits: that ceiling holds for softmax "
            f"only, and these heads use other normalizers ({e.in_place}).",
            "The tight ceiling 1/(1 + (n - 1) e^-R) of the largest weight is proved for softmax.",
            {"largest weight, mean": overall.value},
        )
    return Finding(
        "forced dispersion",
        f"{sentence(group.counted('has', 'have'))} logits so close together that softmax cannot give any key half of "
        f"the weight, on average over queries, at {e.longest:,} tokens.",
        "A head counts if the mean over queries of the tight ceiling 1/(1 + (n - 1) e^-R) of the largest weight is "
        "below 0.5, R the range of the query's logits. Single queries may have a higher ceiling.",
        group.numbers("heads that cannot")
        | {"largest weight, mean": overall.value, "its proved ceiling, mean": overall.limit},
        group.places,
    )


def _random_sets(e: Evidence) -> Finding | None:
    if not e.p_values or not e.can_reject:
        return None
    largest = max(e.p_values)
    at = largest if e.critical is NOTHING else int(e.critical.value or 0)
    numbers: dict[str, Fact] = {"critical N": None if e.critical is NOTHING else at, "largest N tested": largest}
    words = f"Selection differs from chance at every set size tried (up to {largest})."
    if e.critical is not NOTHING:
        numbers |= {"interval from": e.critical.low, "to": e.critical.high}
        words = f"From {tokens(at)} on, selection is statistically indistinguishable from random."
        if again := [n for n, p in e.p_values.items() if n > at and (p.value or 0) <= LEVEL]:
            words = (
                f"Selecting {tokens(at)} is statistically indistinguishable from random, but selecting {again[0]} is "
                "not."
            )
    numbers[f"KS statistic at N = {at}"] = e.all.cell("ks_statistic", at).value
    numbers[f"p-value at N = {at}"] = e.p_values.get(at, NOTHING).value
    rule = (
        "Critical N: the first size at which a two-sample Kolmogorov-Smirnov test of the heads' mean distances against "
        f"those of random sets does not reject at level {LEVEL:g} (arXiv 2508.17821). Not rejecting does not prove "
        "equality."
    )
    return Finding("random sets", words, rule, numbers)


def _separability(e: Evidence) -> Finding | None:
    overall, blurred = e.all.separability, e.group(is_blurred)
    if overall.control is None or not blurred.measured:
        return None
    counted = f"{blurred.counted('does', 'do')} no better than random"
    if not blurred.places:
        counted = f"every head does better than random{'' if overall.low is not None else ' (one window: no interval)'}"
    return Finding(
        "separability",
        f"Of the {tokens(e.size or 0)} that a head weights most, {percent(overall.value)} are separable from "
        f"the rest, against {percent(overall.control)} of {e.size} random ones; {counted}.",
        "Separability: the share of the selected tokens whose weighted vectors lie no farther from their sum than the "
        "nearest unselected one. A head does no better than random if the interval of its separability reaches down to "
        "that of random sets.",
        _with_interval("separability", overall)
        | {"of random sets": overall.control}
        | blurred.numbers("heads no better than random"),
        blurred.places,
    )


def _length(e: Evidence) -> Finding | None:
    overall, fading = e.all.cell("decay_exponent"), e.group(is_fading)
    if overall.value is None or not fading.measured:
        return None
    reaching = sum(head.cell("decay_exponent").at_least <= 0 for head in fading.measured)
    return Finding(
        "length",
        f"As the context grows to {e.longest:,} tokens, the largest weight of a head scales as "
        f"{power_of_n(overall.value)} on average; {fading.counted('fades', 'fade')} at least half as fast as a uniform "
        "head.",
        "A head fades if its decay exponent (least squares of the log of the largest weight on ln n) is at least "
        f"{FADING:g}; a uniform head has 1.",
        _with_interval("mean decay exponent", overall)
        | fading.numbers("heads that fade", **{"heads whose interval reaches 0 or below": reaching}),
        fading.places,
    )


def _sinks(e: Evidence) -> Finding | None:
    overall = e.all.cell("sink_mass")
    if overall.value is None or not e.sinks.measured:
        return None
    uniform = "" if overall.control is None else f", a uniform head would give it {percent(overall.control)}"
    return Finding(
        "sinks",
        f"{sentence(e.sinks.counted('gives', 'give'))} more than half of the weight to the first visible token; all "
        f"heads together give it {percent(overall.value)}{uniform}.",
        _A_SINK,
        _with_interval("weight on the first key", overall)
        | {"of a uniform head": overall.control}
        | e.sinks.numbers("sinks"),
        e.sinks.places,
    )


def _gradients(e: Evidence) -> Finding | None:
    overall = e.all.cell("sensitivity_worst_mean")
    if overall.value is None or not overall.limit:
        return None
    fragile = "no head becomes fragile at the temperatures tried"
    if e.fragile:
        fragile = f"the first head becomes fragile below T = {e.highest_floor:.2f}"
    reacts = f"react with {percent(overall.value / overall.limit)} of the largest possible sensitivity"
    if not math.isfinite(overall.limit):
        reacts = f"move by {overall.value:.2g} per unit change of the logits in the worst direction, without a ceiling"
    return Finding(
        "gradients",
        f"At T = 1 the weights {reacts}; {fragile}.",
        "A head is fragile at a temperature where the 95th percentile of the worst-direction sensitivity over the "
        f"queries of a window (the mean of the windows' percentiles) reaches {FRAGILE:g} per logit"
        + (
            f". The ceiling is that of the normalizers in place ({e.in_place})."
            if e.in_place
            else ", twice what any softmax row can reach at T = 1. No softmax head can be fragile above T = 0.5."
        ),
        _with_interval("worst sensitivity at T = 1, mean", overall)
        | {"its ceiling": overall.limit, "highest temperature at which a head is fragile": e.highest_floor}
        | _fragile_numbers(e),
    )


def _fragile_numbers(e: Evidence) -> dict[str, Fact]:
    counts = {"heads that get fragile": len(e.fragile), "heads": len(e.floors)}
    return {"the same for the median head": e.middle_floor, **counts}


VERDICTS = (_learned, _dispersion, _forced_dispersion, _random_sets, _separability, _length, _sinks, _gradients)


# -- Advice -----------------------------------------------------------------------------------------------------------


def _active_set(e: Evidence) -> Finding | None:
    needed: dict[Place, int | None] = {
        place: _enough(masses) for place, head in e.heads.items() if (masses := head.by_size("top_mass"))
    }
    if not needed or not e.masses:
        return None
    enough = _enough(e.masses)
    more = [place for place, n in needed.items() if n is None or (enough is not None and n > enough)]
    beyond = Group(tuple(more), [e.heads[place] for place in needed])
    size = max(e.masses) if enough is None else enough
    held, separable = percent(e.masses[size].value), e.all.cell("separability", size)
    if enough is None:  # more tokens do not help attention that was not learned
        question = "" if e.all_uniform or e.guesses else "; how many the loss needs: abbe capacity"
        words = f"Even {many(size, 'key')} per query hold only {held} of the weight{question}."
    else:
        words = (
            f"{many(size, 'key')} per query {'holds' if size == 1 else 'hold'} {held} of the weight, on average over "
            f"heads; {beyond.counted('needs', 'need')} more. How many the loss needs: abbe capacity."
        )
    return Finding(
        "active-set size",
        words,
        f"The smallest measured N whose keys of largest weight hold at least {percent(KEPT)} of the weight at "
        f"{e.longest:,} tokens. Weight kept is not loss kept: a head may need the rest.",
        {"smallest size that keeps the weight": enough}
        | _with_interval(f"weight of the {size} largest", e.masses[size])
        | {f"separability of {size} tokens": separable.value, "of random sets": separable.control}
        | beyond.numbers("heads that need more"),
        beyond.places,
    )


def _enough(masses: Mapping[int, Cell]) -> int | None:
    """The smallest size whose keys keep enough of the weight."""
    return next((n for n, cell in masses.items() if (cell.value or 0) >= KEPT), None)


def _temperature_floor(e: Evidence) -> Finding | None:
    tried = [row["lowest"] for row in e.floors if row["lowest"] is not None]
    if not tried:
        return None
    words = f"No head becomes fragile down to T = {tried[0]:g}, the lowest temperature tried."
    if e.fragile:
        words = (
            f"Keep the temperature above {e.highest_floor:.2f}, where the first head (layer {e.fragile[0]['layer']}, "
            f"head {e.fragile[0]['head']}) becomes fragile; the median head does at {e.middle_floor:.2f}."
        )
    return Finding(
        "temperature floor",
        words,
        "The highest temperature, over heads, at which the 95th percentile of the worst-direction sensitivity over the "
        f"queries of a window reaches {FRAGILE:g} per logit. The logits are those of the model, divided by T; "
        "nothing was trained." + ("" if e.in_place else " Softmax cannot reach it above T = 0.5, whatever the model."),
        {"temperature floor": e.highest_floor, **_fragile_numbers(e), "lowest temperature tried": tried[0]},
        tuple((row["layer"], row["head"]) for row in e.fragile[:_EXAMPLES]),
    )


def _keep_sinks(e: Evidence) -> Finding | None:
    if not e.sinks.measured:
        return None
    words = "No head is a sink: nothing to do."
    if e.sinks.places:
        words = (
            f"{sentence(e.sinks.counted('is a sink', 'are sinks'))}: keep the first token in every active set, or "
            "train with a learned sink (normalizers sink, softmax1)."
        )
    weight = {"weight on the first key, all heads": e.all.value("sink_mass")}
    return Finding("sinks", words, _A_SINK, e.sinks.numbers("sinks") | weight, e.sinks.places)


def _sparse_normalizer(e: Evidence) -> Finding | None:
    baseline = e.alternatives.filter(normalizer=BASELINE).drop_nulls("separable")
    if baseline.is_empty():
        return None
    best, sharper = could_be_sparser(e.alternatives, SPARSE), could_be_sparser(e.alternatives, [SHARPER])
    numbers: dict[str, Fact] = {
        "heads that could be sparser": best.height,
        "heads": baseline.height,
        "separable weight now, mean over heads": _mean(baseline, "separable"),
        f"heads that {SHARPER} might help by the same rule": sharper.height,
    }
    words = (
        "No head would gain from a sparse normalizer without a clearly different output, by an estimate from the same "
        "logits."
    )
    if best.height:
        gain, change, top = _mean(best, "gain"), _mean(best, "output_change"), best.row(0, named=True)
        words = (
            f"{sentence(heads_of(best.height, baseline.height, 'could', 'could'))} be sparser: the best of "
            f"{len(SPARSE)} sparse normalizers puts another {percent(gain)} of the weight on separable tokens and "
            f"moves outputs by {percent(change)}; {SHARPER} alone does so for {sharper.height}. An estimate from the "
            "same logits: swapped in without calibration it can raise the loss."
        )
        numbers |= {"mean gain of those heads": gain, "their outputs would move by": change}
        numbers |= {"largest gain": top["gain"], "of layer": top["layer"], "head": top["head"]}
        numbers |= {"with": top["normalizer"]}
        control = e.alternatives.filter(normalizer=SHARPER).join(best, on=["layer", "head"], how="semi")
        if control.height:
            numbers[f"gain of those heads with {SHARPER} instead"] = _mean(control, "gain")
            numbers["whose outputs would move by"] = _mean(control, "output_change")
        numbers |= {f"heads best served by {spec}": count for spec, count in best_served(best).iter_rows()}
    return Finding(
        "sparse normalizer",
        words,
        "The same logits are renormalised by each sparse alternative. A head could be sparser if the share of its "
        f"weight on separable selected tokens rises by at least {percent(GAIN)}, with the interval of paired windows "
        f"(at most 4, so a narrow one) above 0, while its output moves by at most {percent(MOVED)} of its length. "
        "Later layers would see other inputs, and nothing was trained: abbe compare and abbe calibrate test it.",
        numbers,
        tuple(best.select("layer", "head").iter_rows()),
    )


def _mean(table: pl.DataFrame, column: str) -> float | None:
    """Exactly rounded, so it does not depend on how the rows are chunked."""
    known = table[column].drop_nulls().to_list()
    return fmean(known) if known else None


ADVICE = (_active_set, _temperature_floor, _keep_sinks, _sparse_normalizer)


# -- The five numbers -------------------------------------------------------------------------------------------------


def key_numbers(e: Evidence) -> tuple[KeyNumber, ...]:
    """Effective tokens, separability, critical N, decay exponent, sensitivity: all heads, at the largest length."""
    size, effective, separable = tokens(e.size or 0), e.all.cell("effective_tokens"), e.all.separability
    decay, sensitivity = e.all.cell("decay_exponent"), e.all.cell("sensitivity_worst_mean")
    at_random = "" if separable.control is None else f"; of {size} drawn at random: {percent(separable.control)}"
    proved = (
        f"; the proved ceiling is {sensitivity.limit:.3g} on average over queries"
        if _is_ceiling(sensitivity.limit)
        else ""
    )
    share = f"The share of the top {size} that is separable from the rest{at_random}."
    falls = (
        f"The largest weight of a head scales as {power_of_n(decay.value or 0)} with the n keys it sees; a uniform "
        "head's as n^-1."
    )
    moves = f"How far the weights move for a unit change of the logits in the worst direction{proved}."
    named, per_logit = f"separability of {e.size} tokens" if e.size else "separability", f"{sensitivity.value or 0:.2g}"
    return (
        _key("effective tokens", "effective_tokens", effective, tokens(effective.value or 0), _effective(e, effective)),
        _key(named, "separability", separable, percent(separable.value), share),
        _critical_number(e),
        _key("decay exponent", "decay_exponent", decay, f"{decay.value or 0:.2f}", falls),
        _key("worst sensitivity", "sensitivity_worst_mean", sensitivity, f"{per_logit} per logit", moves),
    )


def _is_ceiling(limit: float | None) -> bool:
    return limit is not None and 0 < limit < math.inf


def _key(name: str, measure: str, cell: Cell, shown: str, meaning: str) -> KeyNumber:
    if cell is NOTHING:
        shown, meaning = "not measured", "No query gave this number."
    return KeyNumber(name, measure, cell.value, cell.low, cell.high, cell.limit, cell.control, shown, meaning)


def _effective(e: Evidence, cell: Cell) -> str:
    """The mean with the median head and the range: a few spread heads move the mean of all."""
    heads = sorted(value for head in e.heads.values() if (value := head.value("effective_tokens")) is not None)
    of_keys = "" if cell.limit is None else f", of {cell.limit:,.0f} that it sees on average"
    of_heads = ""
    if len(heads) > 1:
        low, middle, high = (number(count, 3) for count in (heads[0], median(heads), heads[-1]))
        of_heads = f"; the median head over {middle}, with heads from {low} to {high}"
    return f"A query spreads its weight as if equally over {tokens(cell.value or 0)}{of_keys}{of_heads}."


def _critical_number(e: Evidence) -> KeyNumber:
    """Here a missing value says something: no size is critical, or the test cannot say."""
    cell, largest = e.critical, max(e.p_values, default=0)
    shown, meaning = "not measured", "No query gave this number."
    if e.p_values and not e.can_reject:
        cell, shown = NOTHING, "too few heads"
        meaning = f"With so few heads the test cannot distinguish anything from chance at level {LEVEL:g}."
    elif e.p_values and cell is NOTHING:
        shown = f"none up to {largest}"
        meaning = f"Up to {largest} selected tokens, the heads' distances differ from those of random sets."
    elif e.p_values:
        shown = tokens(cell.value or 0)
        meaning = f"With {shown} selected, the heads' distances are first indistinguishable from random sets."
    numbers = (cell.value, cell.low, cell.high, None, None)
    return KeyNumber("critical N", f"critical_n@{LEVEL:g}", *numbers, shown, meaning)
