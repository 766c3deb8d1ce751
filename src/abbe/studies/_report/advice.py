"""What to do about it: active-set size, temperature floor, sinks, and heads that a sparse normalizer would help."""

from __future__ import annotations

from collections.abc import Collection
from statistics import fmean

import polars as pl

from ...words.finding import Fact, Finding, Place
from ...words.names import BASELINE
from ...words.numbers import heads_of, many, percent, sentence
from ...words.thresholds import FRAGILE, SINK
from .._engine.lookup import Lookup
from .floors import highest_and_middle
from .head_verdicts import head_facts, is_sink

KEPT = 0.9  # of the weight, by an active set that is large enough
GAIN = 0.05  # of the weight, moved to separable tokens: less is not worth a change
MOVED = 0.25  # of the output's length: a head that is changed more is another head
_NAMED = 5  # heads that an advice names as examples


def advice(
    table: Lookup,
    floors: pl.DataFrame,
    alternatives: pl.DataFrame,
    sparse: Collection[str],
    sharper: str = "",
    learned: bool = True,
) -> tuple[Finding, ...]:
    """Each with its evidence; what was not measured is left out.

    `sparse` are the alternatives with exact zeros, `sharper` is their control: softmax at a lower temperature.
    Attention that has not been `learned` is not helped by more tokens.
    """
    findings = [
        _active_set(table, learned),
        _temperature(floors),
        _sinks(table),
        _sparse(alternatives, sparse, sharper),
    ]
    return tuple(finding for finding in findings if finding is not None)


def smallest_sets(table: Lookup) -> dict[Place, int | None]:
    """For every head the smallest measured size that keeps its weight; None if none does."""
    sizes: dict[Place, int | None] = {}
    for n in table.sizes:
        for place, cell in table.heads("top_mass", table.longest, n).items():
            if sizes.get(place) is None:
                sizes[place] = n if cell.value >= KEPT else None
    return sizes


def _active_set(table: Lookup, learned: bool) -> Finding | None:
    needed, longest = smallest_sets(table), table.longest
    masses = {n: cell for n in table.sizes if (cell := table.overall("top_mass", longest, n)) is not None}
    if not needed or not masses:
        return None
    enough = next((n for n, cell in masses.items() if cell.value >= KEPT), None)
    largest = max(masses)
    beyond = tuple(place for place, n in needed.items() if n is None or (enough is not None and n > enough))
    at = largest if enough is None else enough
    separable = table.overall("separability", longest, at)
    numbers: dict[str, Fact] = {
        "smallest size that keeps the weight": enough,
        f"weight of the {at} largest": masses[at].value,
        "interval from": masses[at].low,
        "to": masses[at].high,
        f"separability of {at} tokens": None if separable is None else separable.value,
        "of random sets": None if separable is None else separable.control,
        "heads that need more": len(beyond),
        "heads": len(needed),
    }
    words = (
        f"Even {many(largest, 'key')} per query hold only {percent(masses[largest].value)} of the weight"
        f"{'; how many the loss needs: abbe capacity' if learned else ''}."
        if enough is None
        else f"{many(enough, 'key')} per query {'holds' if enough == 1 else 'hold'} {percent(masses[at].value)} of the "
        f"weight, on average over heads; {heads_of(len(beyond), len(needed), 'needs', 'need')} more. How many the loss "
        "needs: abbe capacity."
    )
    rule = (
        f"The smallest measured N whose keys of largest weight hold at least {percent(KEPT)} of the weight at "
        f"{longest:,} tokens. Weight kept is not loss kept: a head may need the rest."
    )
    return Finding("active-set size", words, rule, numbers, beyond)


def _temperature(floors: pl.DataFrame) -> Finding | None:
    if floors["lowest"].drop_nulls().is_empty():
        return None
    known = floors.drop_nulls("floor").sort("floor", descending=True)
    lowest = floors["lowest"].drop_nulls().to_list()[0]
    first, middle = known.row(0, named=True) if known.height else None, highest_and_middle(floors)
    numbers: dict[str, Fact] = {
        "temperature floor": None if first is None else first["floor"],
        "the same for the median head": None if middle is None else middle[1],
        "heads that get fragile": known.height,
        "heads": floors.height,
        "lowest temperature tried": lowest,
    }
    words = (
        f"No head becomes fragile down to T = {lowest:g}, the lowest that was tried."
        if first is None or middle is None
        else f"Keep the temperature above {first['floor']:.2f}, where the first head (layer {first['layer']}, head "
        f"{first['head']}) becomes fragile; the median head does at {middle[1]:.2f}."
    )
    rule = (
        "The highest temperature, over heads, at which the 95th percentile of the worst-direction sensitivity over the "
        f"queries of a window reaches {FRAGILE:g} per logit. The logits are those of the model as it is, divided by T; "
        "nothing was trained. Softmax cannot reach it above T = 0.5, whatever the model."
    )
    places = tuple((row["layer"], row["head"]) for row in known.head(_NAMED).iter_rows(named=True))
    return Finding("temperature floor", words, rule, numbers, places)


def _sinks(table: Lookup) -> Finding | None:
    heads = {place: facts for place, facts in head_facts(table).items() if facts.sink is not None}
    if not heads:
        return None
    sinks = tuple(place for place, facts in heads.items() if is_sink(facts))
    overall = table.overall("sink_mass", table.longest)
    numbers: dict[str, Fact] = {
        "sinks": len(sinks),
        "heads": len(heads),
        "weight on the first key, all heads": None if overall is None else overall.value,
    }
    words = (
        "No head is a sink: nothing to do."
        if not sinks
        else sentence(
            f"{heads_of(len(sinks), len(heads), 'is a sink', 'are sinks')}: keep the first token in every active set, "
            "or train with a learned sink (normalizers sink, softmax1)."
        )
    )
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


def _sparse(alternatives: pl.DataFrame, sparse: Collection[str], sharper: str) -> Finding | None:
    baseline = alternatives.filter(pl.col("normalizer") == BASELINE).drop_nulls("separable")
    if baseline.is_empty():
        return None
    best, by_sharpening = gaining(alternatives, sparse), gaining(alternatives, [sharper])
    places = tuple((row["layer"], row["head"]) for row in best.iter_rows(named=True))
    numbers: dict[str, Fact] = {
        "heads that might gain": best.height,
        "heads": baseline.height,
        "separable weight now, mean over heads": _mean(baseline, "separable"),
        f"heads that {sharper} might help by the same rule": by_sharpening.height,
    }
    if best.height:
        top = best.row(0, named=True)
        numbers |= {
            "mean gain of those heads": _mean(best, "gain"),
            "their outputs would move by": _mean(best, "output_change"),
            "largest gain": top["gain"],
            "of layer": top["layer"],
            "head": top["head"],
            "with": top["normalizer"],
        }
        control = best.select("layer", "head").join(
            alternatives.filter(pl.col("normalizer") == sharper), on=["layer", "head"]
        )
        if control.height:
            numbers |= {
                f"gain of those heads with {sharper} instead": _mean(control, "gain"),
                "whose outputs would move by": _mean(control, "output_change"),
            }
        served = best.group_by("normalizer").len().sort("len", "normalizer", descending=[True, False])
        numbers |= {f"heads best served by {spec}": count for spec, count in served.iter_rows()}
    words = (
        "No head would gain from a sparse normalizer without a clearly different output, by an estimate from the same "
        "logits."
        if not best.height
        else sentence(
            f"{heads_of(best.height, baseline.height, 'might', 'might')} gain from the best of {len(sparse)} sparse "
            f"normalizers: another {percent(_mean(best, 'gain'))} of the weight on separable tokens, outputs moved by "
            f"{percent(_mean(best, 'output_change'))}; {sharper} alone might help {by_sharpening.height}. An estimate "
            "from the same logits: swapped in without calibration it can raise the loss."
        )
    )
    rule = (
        "The same logits are renormalised by each sparse alternative. A head might gain if the share of its weight on "
        f"separable selected tokens rises by at least {percent(GAIN)}, with the interval of paired windows (at "
        "most 4, so a narrow one) above 0, while "
        f"its output moves by at most {percent(MOVED)} of its length. Later layers would see other inputs, and nothing "
        "was trained: abbe compare and abbe calibrate test it."
    )
    return Finding("sparse normalizer", words, rule, numbers, places)


def _mean(table: pl.DataFrame, column: str) -> float | None:
    """The same for the same rows, however they are stored."""
    known = table[column].drop_nulls().to_list()
    return fmean(known) if known else None
