"""What a run says about the model: plain sentences, each with its rule and its evidence.

First whether attention has been learned at all: there is no advice on random or uniform weights. Either sign is enough.
Fresh initial weights are so small that attention is uniform in nearly all heads, as it is where queries or keys are
zero. Large random weights, or normalised queries and keys, give attention that looks selective without having learned
anything; then the loss is that of guessing. docs/explanation/report-rules.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from ...words.finding import NOT_LEARNED, NOTICE, Fact, Finding, Place
from ...words.numbers import heads_of, percent, power_of_n, sentence, tokens
from ...words.thresholds import FADING, FRAGILE, NEAR_UNIFORM, SINK
from .._engine.lookup import Cell, Lookup
from .head_verdicts import Facts, head_facts, is_blurred, is_fading, is_near_uniform, is_sink, value_of
from .key_numbers import LEVEL, can_reject, critical_n
from .limits import highest_and_median
from .result import Sample

UNIFORM_HEADS = 0.9  # of all heads near the entropy ceiling; at most 0.02 in trained models
GUESSING = 0.97  # of ln(vocabulary): untrained models had 0.995 and more in every window, trained ones at most 0.96
HALF = 0.5


def verdicts(table: Lookup, floors: pl.DataFrame, sample: Sample | None = None) -> tuple[Finding, ...]:
    """What the run, and the loss of the sample, say about the model, as far as it was measured."""
    heads = head_facts(table)
    if not heads:
        return ()
    findings = [
        hardly_learned(table, heads, sample),
        _dispersion(table, heads),
        _forced(table),
        _random_sets(table),
        _separability(table, heads),
        _length(table, heads),
        _sinks(table, heads),
        _gradient(table, floors),
    ]
    return tuple(finding for finding in findings if finding is not None)


def _matching(heads: Mapping[Place, Facts], test: Callable[[Facts], bool]) -> tuple[Place, ...]:
    return tuple(place for place, facts in heads.items() if test(facts))


def hardly_learned(table: Lookup, heads: Mapping[Place, Facts], sample: Sample | None) -> Finding | None:
    """The verdict, if attention is uniform in nearly all heads or the next token is merely guessed."""
    measured = {place: facts for place, facts in heads.items() if facts.entropy_share is not None}
    near = _matching(measured, is_near_uniform)
    uniform = bool(measured) and len(near) >= UNIFORM_HEADS * len(measured)
    loss, guessing = (None, None) if sample is None else (sample.loss, sample.guessing)
    guesses = loss is not None and guessing is not None and loss >= GUESSING * guessing
    if not (uniform or guesses):
        return None
    signs = []
    if uniform:
        words = heads_of(len(near), len(measured), "is", "are")
        signs.append(f"{words} within {percent(1 - NEAR_UNIFORM)} of the entropy ceiling at {table.longest:,} tokens")
    if guesses:
        signs.append(
            f"the next token is predicted no better than by guessing (loss {loss:.2f} nats, guessing {guessing:.2f})"
        )
    numbers: dict[str, Fact] = {
        "heads near the entropy ceiling": len(near), "heads": len(measured),
        "loss of the next token, nats": loss, "loss of guessing, nats": guessing,
    }  # fmt: skip
    rule = (
        f"At least {percent(UNIFORM_HEADS)} of the heads have a mean entropy of {percent(NEAR_UNIFORM)} of the mean of "
        f"ln n or more, or the loss on the window shown is at least {percent(GUESSING)} of ln V, the loss of guessing "
        "among all V tokens. For a trained model the second means that it cannot predict this text. Only causal "
        "language models have that loss."
    )
    return Finding(NOT_LEARNED, f"{NOTICE} {sentence(', and '.join(signs))}.", rule, numbers, near)


def _dispersion(table: Lookup, heads: Mapping[Place, Facts]) -> Finding | None:
    measured = {place: facts for place, facts in heads.items() if facts.entropy_share is not None}
    if not measured:
        return None
    near = _matching(measured, is_near_uniform)
    shares = [facts.entropy_share or 0.0 for facts in measured.values()]
    numbers: dict[str, Fact] = {
        "heads near the ceiling": len(near),
        "of these with the whole interval there": sum(_surely_uniform(measured[place]) for place in near),
        "heads": len(measured),
        "mean entropy over its ceiling": sum(shares) / len(shares),
    }
    return Finding(
        "dispersion",
        sentence(
            f"{heads_of(len(near), len(measured), 'is', 'are')} within {percent(1 - NEAR_UNIFORM)} of the entropy "
            f"ceiling at {table.longest:,} tokens."
        ),
        f"A head counts if its mean entropy at the largest length is at least {percent(NEAR_UNIFORM)} of the mean of "
        "ln n, n the keys that a query sees.",
        numbers,
        near,
    )


def _surely_uniform(facts: Facts) -> bool:
    """Of a head near the ceiling: the whole interval is there."""
    cell = facts.entropy
    return cell is not None and cell.low is not None and cell.low >= NEAR_UNIFORM * (cell.limit or 0)


def _forced(table: Lookup) -> Finding | None:
    """Heads whose logits are too close together for any key to get half of the weight."""
    cells = {p: c for p, c in table.heads("max_weight", table.longest).items() if c.limit is not None}
    if not cells:
        return None
    forced = tuple(place for place, cell in cells.items() if (cell.limit or 0) < HALF)
    overall = table.overall("max_weight", table.longest)
    numbers: dict[str, Fact] = {
        "heads that cannot": len(forced), "heads": len(cells), "largest weight, mean": value_of(overall),
        "its proved ceiling, mean": None if overall is None else overall.limit,
    }  # fmt: skip
    return Finding(
        "forced dispersion",
        sentence(
            f"{heads_of(len(forced), len(cells), 'has', 'have')} logits so close together that softmax cannot give "
            f"any key half of the weight, on average over queries, at {table.longest:,} tokens."
        ),
        "A head counts if the mean over queries of the tight ceiling 1/(1 + (n - 1) e^-R) of the largest weight is "
        "below 0.5, R the range of the query's logits. Single queries may have a higher ceiling.",
        numbers,
        forced,
    )


def _random_sets(table: Lookup) -> Finding | None:
    critical, tested = critical_n(table)
    if not tested or not can_reject(table):
        return None
    p_values = {n: table.overall("ks_p_value", table.longest, n) for n in tested}
    at = tested[-1] if critical is None else int(critical.value)
    numbers: dict[str, Fact] = {"critical N": None if critical is None else at, "largest N tested": tested[-1]}
    if critical is not None:
        numbers |= {"interval from": critical.low, "to": critical.high}
    numbers |= {
        f"KS statistic at N = {at}": value_of(table.overall("ks_statistic", table.longest, at)),
        f"p-value at N = {at}": value_of(p_values.get(at)),
    }
    rule = (
        "Critical N: the first size at which a two-sample Kolmogorov-Smirnov test of the heads' mean distances against "
        f"those of random sets does not reject at level {LEVEL:g} (arXiv 2508.17821). Not rejecting does not prove "
        "equality."
    )
    return Finding("random sets", _critical_sentence(at if critical else None, p_values), rule, numbers)


def _critical_sentence(critical: int | None, p_values: Mapping[int, Cell | None]) -> str:
    if critical is None:
        return f"Up to {max(p_values)} tokens, the most tried, selection is statistically distinguishable from random."
    rejected_again = [n for n, p in p_values.items() if n > critical and p is not None and p.value <= LEVEL]
    indistinguishable = "is statistically indistinguishable from random"
    if rejected_again:
        return f"Selecting {tokens(critical)} {indistinguishable}, but selecting {rejected_again[0]} is not."
    return f"From {tokens(critical)} on, selection {indistinguishable}."


def _separability(table: Lookup, heads: Mapping[Place, Facts]) -> Finding | None:
    overall = table.overall("separability", table.longest, table.size)
    measured = {place: facts for place, facts in heads.items() if _can_be_blurred(facts)}
    if overall is None or overall.control is None or not measured:
        return None
    blurred = _matching(measured, is_blurred)
    numbers: dict[str, Fact] = {
        **_with_interval("separability", overall),
        "of random sets": overall.control, "heads no better than random": len(blurred), "heads": len(measured),
    }  # fmt: skip
    counted = f"{heads_of(len(blurred), len(measured), 'does', 'do')} no better than random"
    if not blurred:
        counted = f"every head does better than random{'' if overall.low is not None else ' (one window: no interval)'}"
    return Finding(
        "separability",
        f"Of the {tokens(table.size or 0)} that a head weights most, {percent(overall.value)} are separable from "
        f"the rest, against {percent(overall.control)} of {table.size} random ones; {counted}.",
        "Separability: the share of the selected tokens whose weighted vectors lie no farther from their sum than the "
        "nearest unselected one. A head does no better than random if the interval of its separability reaches down to "
        "that of random sets.",
        numbers,
        blurred,
    )


def _can_be_blurred(facts: Facts) -> bool:
    """Where random sets are always separable, as sets of one are, no head can do better."""
    cell = facts.separability
    return cell is not None and cell.control is not None and cell.control < 1


def _length(table: Lookup, heads: Mapping[Place, Facts]) -> Finding | None:
    overall = table.overall("decay_exponent")
    measured = {place: facts for place, facts in heads.items() if facts.decay is not None}
    if overall is None or not measured:
        return None
    fading = _matching(measured, is_fading)
    holding = sum(1 for f in measured.values() if f.decay is not None and f.decay.at_least <= 0)
    numbers: dict[str, Fact] = {
        **_with_interval("mean decay exponent", overall),
        "heads that fade": len(fading), "heads whose interval reaches 0 or below": holding, "heads": len(measured),
    }  # fmt: skip
    return Finding(
        "length",
        f"As the context grows to {table.longest:,} tokens, the largest weight of a head scales as "
        f"{power_of_n(overall.value)} on average; {heads_of(len(fading), len(measured), 'fades', 'fade')} at least "
        "half as fast as a uniform head.",
        f"A head fades if its decay exponent (least squares of the log of the largest weight on ln n) is at least "
        f"{FADING:g}; a uniform head has 1.",
        numbers,
        fading,
    )


def _sinks(table: Lookup, heads: Mapping[Place, Facts]) -> Finding | None:
    overall = table.overall("sink_mass", table.longest)
    measured = {place: facts for place, facts in heads.items() if facts.sink is not None}
    if overall is None or not measured:
        return None
    sinks = _matching(measured, is_sink)
    numbers: dict[str, Fact] = {
        **_with_interval("weight on the first key", overall),
        "of a uniform head": overall.control, "sinks": len(sinks), "heads": len(measured),
    }  # fmt: skip
    uniform = "" if overall.control is None else f", a uniform head would give it {percent(overall.control)}"
    return Finding(
        "sinks",
        sentence(
            f"{heads_of(len(sinks), len(measured), 'gives', 'give')} more than half of the weight to the first "
            f"visible token; all heads together give it {percent(overall.value)}{uniform}."
        ),
        f"A head is a sink if the mean weight of the first visible key is above {percent(SINK)} at that length.",
        numbers,
        sinks,
    )


def _gradient(table: Lookup, floors: pl.DataFrame) -> Finding | None:
    overall = table.overall("sensitivity_worst_mean", table.longest)
    if overall is None or not overall.limit:
        return None
    highest, middle = highest_and_median(floors) or (None, None)
    numbers: dict[str, Fact] = {
        **_with_interval("worst sensitivity at T = 1, mean", overall), "its ceiling": overall.limit,
        "highest temperature at which a head is fragile": highest, "the same for the median head": middle,
        "heads that get fragile": floors["floor"].drop_nulls().len(), "heads": floors.height,
    }  # fmt: skip
    fragile = "no head becomes fragile at the temperatures tried"
    if highest is not None:
        fragile = f"the first head becomes fragile below T = {highest:.2f}"
    return Finding(
        "gradients",
        f"At T = 1 the weights react with {percent(overall.value / overall.limit)} of the largest possible "
        f"sensitivity; {fragile}.",
        f"A head is fragile at a temperature where the 95th percentile of the worst-direction sensitivity over the "
        f"queries of a window (the mean of the windows' percentiles) reaches {FRAGILE:g} per logit, twice what any "
        "softmax row can reach at T = 1. No softmax head can be fragile above T = 0.5.",
        numbers,
    )


def _with_interval(name: str, cell: Cell) -> dict[str, Fact]:
    return {name: cell.value, "interval from": cell.low, "to": cell.high}
