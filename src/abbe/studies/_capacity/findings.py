"""The findings of a study of capacity: plain sentences with their rules and numbers."""

from __future__ import annotations

import polars as pl

from ...runs.loss import targets_words
from ...words.finding import Finding
from ...words.names import DELETION, RENORMALISED
from ...words.numbers import number, percent, sentence, with_interval
from ...words.paper import PAPER_CRITICAL_SHARE
from .._shared.truncation import EXACT
from .layer_findings import INTERPOLATED, Row, layer_findings, needed_keys
from .settings import CapacitySettings

_HOW = {DELETION: "with their weights unchanged", RENORMALISED: "with their weights renormalised"}
_LEAST = "The least N at which keeping only the top N keys per query, in every head and layer, raises"


def findings(
    table: pl.DataFrame, growth: pl.DataFrame, correlation: pl.DataFrame, settings: CapacitySettings
) -> tuple[Finding, ...]:
    """For the model, over lengths, for layers, for the geometry; then a warning."""
    of_model = table.filter(pl.col("layer").is_null())
    longest = of_model.filter(pl.col("length") == settings.lengths[-1])
    scored = targets_words(settings.targets)
    rule = f"{_LEAST} the mean loss of {scored} by at most tau, relative to the baseline on the same windows."
    rule += "" if settings.grid == EXACT else INTERPOLATED
    sentences = [_capacity(longest.filter(pl.col("way") == way).to_dicts(), way, rule) for way in settings.ways]
    grown = growth.filter(pl.col("layer").is_null() & (pl.col("tau") == settings.taus[0]))
    sentences += [_growth(of_model, row) for row in grown.to_dicts()]
    sentences += layer_findings(table, correlation, settings) if settings.layers else []
    return (*sentences, *_not_monotone(table))


def _capacity(rows: list[Row], way: str, rule: str) -> Finding:
    first, *others = [(f"the top {needed_keys(row)}", f"by at most {percent(row['tau'], 2)}") for row in rows]
    more = "".join(f"; {keys} {rise}" for keys, rise in others)
    length = rows[0]["length"]
    return Finding(
        "capacity",
        f"At {length:,} tokens, keeping only {first[0]} per query, {_HOW[way]}, raises the loss {first[1]}{more}.",
        rule,
        {"length": length, "way": way, "windows": rows[0]["windows"]}
        | {f"N at {percent(row['tau'], 2)}": row["capacity"] for row in rows},
    )


def _growth(of_model: pl.DataFrame, row: Row) -> Finding:
    some = of_model.filter((pl.col("way") == row["way"]) & (pl.col("tau") == row["tau"])).sort("length").to_dicts()
    first, last = some[0], some[-1]
    exponent = with_interval(row["exponent"], row["low"], row["high"], "{:.2f}".format)
    shares = f"{percent(first['share'])} of {first['length']:,} tokens, {percent(last['share'])} of {last['length']:,}"
    return Finding(
        "growth",
        f"{sentence(row['way'])}: N* for {percent(row['tau'], 2)} scales as L to the power of {exponent}: "
        f"{_growth_words(row)}. It is {shares}{_share_words(row)}.",
        "Least squares of ln N* on ln L, with N* not rounded up but interpolated between the sizes tried; the interval "
        "resamples the windows of each length. Below 1 the share N*/L falls. An interval that contains 0 shows no "
        "growth, one that contains 1 no change of the share.",
        {"exponent": row["exponent"], "low": row["low"], "high": row["high"], "way": row["way"], "tau": row["tau"]}
        | {f"N*/L at {one['length']}": one["share"] for one in some},
    )


def _growth_words(row: Row) -> str:
    low, high = row["low"], row["high"]
    if low is None or high is None:
        return "single windows give no interval, so nothing can be shown"
    if low <= 0 <= high:
        return "no growth with the length can be shown"
    if high < 1:
        return (
            "the longer the text, the smaller the share of it that is needed" if low > 0 else "longer texts need less"
        )
    if low <= 1:
        return "it grows, and no change of its share of the length can be shown"
    return "the longer the text, the larger the share that is needed"


def _share_words(row: Row) -> str:
    """Only where the share is shown to change."""
    changes = row["low"] is not None and (row["high"] < 1 or row["low"] > 1)
    return f"; no single share, such as {percent(PAPER_CRITICAL_SHARE)}, fits all" if changes else ""


def _not_monotone(table: pl.DataFrame) -> list[Finding]:
    odd = table.filter(~pl.col("monotone"))
    if not odd.height:
        return []
    most = odd.sort(pl.col("layer").is_not_null(), pl.col("first") / pl.col("capacity")).row(0, named=True)
    where = "the whole model" if most["layer"] is None else f"layer {most['layer']}"
    return [
        Finding(
            "not monotone",
            f"In {odd.height} of {table.height} rows a smaller N also kept the loss: keeping more keys is not always "
            f"better here, and N* is the least N such that every N tried from there on holds. For {where}, "
            f"{most['way']} at {most['length']:,} tokens and {percent(most['allowed'], 2)}, N = {most['first']:,} "
            f"also held, while N* is {number(most['capacity'], 3)}.",
            "The loss is assumed to fall with N near the crossing, but some N tried below N* has a rise of at most "
            "tau. The column first is the least of these. The sentence is about the row of the model (else of a layer) "
            "where first is the smallest share of N*.",
            {"rows": odd.height}
            | {name: most[name] for name in ("layer", "length", "way", "allowed", "first", "capacity")},
        )
    ]
