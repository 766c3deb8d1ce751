"""What to do about it: active-set size, temperature floor, sinks, and heads that a sparse normalizer would help."""

from __future__ import annotations

from collections.abc import Collection
from statistics import fmean

import polars as pl

from ...words.finding import Fact, Finding, Place
from ...words.names import BASELINE
from ...words.numbers import heads_of, many, percent, sentence
from ...words.thresholds import FRAGILE, SINK
from .._engine.lookup import Cell, Lookup
from .alternatives import SHARPER, SPARSE
from .head_verdicts import head_facts, is_sink, value_of
from .limits import highest_and_median

KEPT = 0.9  # of the weight, by an active set that is large enough
GAIN = 0.05  # of the weight, moved to separable tokens: less is not worth a change
MOVED = 0.25  # of the output's length: a larger change makes it a different head
_EXAMPLES = 5  # fragile heads that the advice lists


def advice(
    table: Lookup, floors: pl.DataFrame, alternatives: pl.DataFrame, learned: bool = True
) -> tuple[Finding, ...]:
    """Each with its evidence, as far as it was measured; more tokens do not help attention that was not `learned`."""
    findings = [_active_set(table, learned), _temperature(floors), _sinks(table), _sparse(alternatives)]
    return tuple(finding for finding in findings if finding is not None)


def top_masses(table: Lookup) -> dict[int, Cell]:
    """The weight of the N largest keys by N, over all heads at the largest length."""
    return {n: cell for n in table.sizes if (cell := table.overall("top_mass", table.longest, n)) is not None}


def _smallest_sets(table: Lookup) -> dict[Place, int | None]:
    """For every head the smallest measured size that keeps its weight; None if none does."""
    sizes: dict[Place, int | None] = {}
    for n in table.sizes:
        for place, cell in table.heads("top_mass", table.longest, n).items():
            if sizes.get(place) is None:
                sizes[place] = n if cell.value >= KEPT else None
    return sizes


def _active_set(table: Lookup, learned: bool) -> Finding | None:
    needed, masses = _smallest_sets(table), top_masses(table)
    if not needed or not masses:
        return None
    enough = next((n for n, cell in masses.items() if cell.value >= KEPT), None)
    beyond = tuple(place for place, n in needed.items() if n is None or (enough is not None and n > enough))
    at = max(masses) if enough is None else enough
    separable = table.overall("separability", table.longest, at)
    numbers: dict[str, Fact] = {
        "smallest size that keeps the weight": enough,
        f"weight of the {at} largest": masses[at].value,
        "interval from": masses[at].low,
        "to": masses[at].high,
        f"separability of {at} tokens": value_of(separable),
        "of random sets": None if separable is None else separable.control,
        "heads that need more": len(beyond),
        "heads": len(needed),
    }
    words = (
        f"Even {many(at, 'key')} per query hold only {percent(masses[at].value)} of the weight"
        f"{'; how many the loss needs: abbe capacity' if learned else ''}."
        if enough is None
        else f"{many(enough, 'key')} per query {'holds' if enough == 1 else 'hold'} {percent(masses[at].value)} of the "
        f"weight, on average over heads; {heads_of(len(beyond), len(needed), 'needs', 'need')} more. How many the loss "
        "needs: abbe capacity."
    )
    rule = (
        f"The smallest measured N whose keys of largest weight hold at least {percent(KEPT)} of the weight at "
        f"{table.longest:,} tokens. Weight kept is not loss kept: a head may need the rest."
    )
    return Finding("active-set size", words, rule, numbers, beyond)


def _temperature(floors: pl.DataFrame) -> Finding | None:
    if floors["lowest"].drop_nulls().is_empty():
        return None
    fragile = floors.drop_nulls("floor").sort("floor", descending=True)
    lowest = floors["lowest"].drop_nulls().to_list()[0]
    highest, middle = highest_and_median(floors) or (None, None)
    numbers: dict[str, Fact] = {
        "temperature floor": highest, "the same for the median head": middle, "heads that get fragile": fragile.height,
        "heads": floors.height, "lowest temperature tried": lowest,
    }  # fmt: skip
    places = tuple(fragile.head(_EXAMPLES).select("layer", "head").iter_rows())
    words = (
        f"No head becomes fragile down to T = {lowest:g}, the lowest temperature tried."
        if highest is None
        else f"Keep the temperature above {highest:.2f}, where the first head (layer {places[0][0]}, head "
        f"{places[0][1]}) becomes fragile; the median head does at {middle:.2f}."
    )
    rule = (
        "The highest temperature, over heads, at which the 95th percentile of the worst-direction sensitivity over the "
        f"queries of a window reaches {FRAGILE:g} per logit. The logits are those of the model, divided by T; "
        "nothing was trained. Softmax cannot reach it above T = 0.5, whatever the model."
    )
    return Finding("temperature floor", words, rule, numbers, places)


def _sinks(table: Lookup) -> Finding | None:
    heads = {place: facts for place, facts in head_facts(table).items() if facts.sink is not None}
    if not heads:
        return None
    sinks = tuple(place for place, facts in heads.items() if is_sink(facts))
    overall = table.overall("sink_mass", table.longest)
    numbers: dict[str, Fact] = {
        "sinks": len(sinks), "heads": len(heads), "weight on the first key, all heads": value_of(overall),
    }  # fmt: skip
    words = "No head is a sink: nothing to do."
    if sinks:
        counted = sentence(heads_of(len(sinks), len(heads), "is a sink", "are sinks"))
        cure = "keep the first token in every active set, or train with a learned sink (normalizers sink, softmax1)"
        words = f"{counted}: {cure}."
    rule = f"A head is a sink if the mean weight of the first visible key is above {percent(SINK)} at that length."
    return Finding("sinks", words, rule, numbers, sinks)


def gaining(alternatives: pl.DataFrame, sparse: Collection[str]) -> pl.DataFrame:
    """For every head that would gain, its best sparse alternative, the largest gain first."""
    sure = pl.col("gain_low").fill_null(pl.col("gain")) > 0
    chosen = alternatives.filter(
        pl.col("normalizer").is_in(list(sparse)) & (pl.col("gain") >= GAIN) & sure & (pl.col("output_change") <= MOVED)
    )
    best = chosen.sort("gain", "normalizer", descending=[True, False]).unique(
        ["layer", "head"], keep="first", maintain_order=True
    )
    return best.sort("gain", "layer", "head", descending=[True, False, False])


def best_served(best: pl.DataFrame) -> pl.DataFrame:
    """How many of these heads each normalizer is the best for, most first."""
    return best.group_by("normalizer").len().sort("len", "normalizer", descending=[True, False])


def _sparse(alternatives: pl.DataFrame) -> Finding | None:
    baseline = alternatives.filter(pl.col("normalizer") == BASELINE).drop_nulls("separable")
    if baseline.is_empty():
        return None
    best, by_sharpening = gaining(alternatives, SPARSE), gaining(alternatives, [SHARPER])
    numbers: dict[str, Fact] = {
        "heads that might gain": best.height,
        "heads": baseline.height,
        "separable weight now, mean over heads": _mean(baseline, "separable"),
        f"heads that {SHARPER} might help by the same rule": by_sharpening.height,
    }
    if best.height:
        top = best.row(0, named=True)
        numbers |= {
            "mean gain of those heads": _mean(best, "gain"),
            "their outputs would move by": _mean(best, "output_change"),
            "largest gain": top["gain"], "of layer": top["layer"], "head": top["head"], "with": top["normalizer"],
        }  # fmt: skip
        sharper = alternatives.filter(pl.col("normalizer") == SHARPER)
        control = best.select("layer", "head").join(sharper, on=["layer", "head"])
        if control.height:
            numbers |= {
                f"gain of those heads with {SHARPER} instead": _mean(control, "gain"),
                "whose outputs would move by": _mean(control, "output_change"),
            }
        numbers |= {f"heads best served by {spec}": count for spec, count in best_served(best).iter_rows()}
    words = (
        "No head would gain from a sparse normalizer without a clearly different output, by an estimate from the same "
        "logits."
        if not best.height
        else sentence(
            f"{heads_of(best.height, baseline.height, 'might', 'might')} gain from the best of {len(SPARSE)} sparse "
            f"normalizers: another {percent(_mean(best, 'gain'))} of the weight on separable tokens, outputs moved by "
            f"{percent(_mean(best, 'output_change'))}; {SHARPER} alone might help {by_sharpening.height}. An estimate "
            "from the same logits: swapped in without calibration it can raise the loss."
        )
    )
    rule = (
        "The same logits are renormalised by each sparse alternative. A head might gain if the share of its weight on "
        f"separable selected tokens rises by at least {percent(GAIN)}, with the interval of paired windows (at most 4, "
        f"so a narrow one) above 0, while its output moves by at most {percent(MOVED)} of its length. Later layers "
        "would see other inputs, and nothing was trained: abbe compare and abbe calibrate test it."
    )
    return Finding("sparse normalizer", words, rule, numbers, tuple(best.select("layer", "head").iter_rows()))


def _mean(table: pl.DataFrame, column: str) -> float | None:
    """Exactly rounded, so it does not depend on how the rows are chunked."""
    known = table[column].drop_nulls().to_list()
    return fmean(known) if known else None
