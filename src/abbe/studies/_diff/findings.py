"""What changed between two sides, in sentences, each with its rule and its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import polars as pl

from ...measures import enough_windows
from ...words.finding import Fact, Finding
from ...words.measures import measure_words
from ...words.numbers import heads_of, interval, many, number, percent, sentence
from .fitted import CRITICAL, DECAY
from .paired import LOSS

MAIN = (  # measures for a first look
    "effective_tokens", "max_weight", "separability", "top_mass", "sink_mass", "previous_token", "induction",
    "sensitivity_worst_mean",
)  # fmt: skip
_MOST_HEADS = 3  # among the largest changes
_BARE = ("weight", "share", "exponent")  # units that the label already says


def findings(table: pl.DataFrame, names: Sequence[str], size: int | None, level: float, windows: int) -> list[Finding]:
    """How much changed, which layers, the largest changes, and what changed on average over heads."""
    single = table.filter(pl.col("head").is_not_null())
    if single.is_empty():
        return []
    length = single["length"].max()
    together = table.filter(pl.col("head").is_null() & (pl.col("length") == length))
    return [
        _how_much(single, names, level, windows),
        *_loss(together),
        *_largest(single, level),
        *_layers(single, level),
        *_on_average(together, size, level),
    ]


def _rule(level: float) -> str:
    return (
        f"a measure of a head counts as changed at a q value of at most {1 - level:g} (paired t test over windows; "
        "Benjamini and Hochberg over all heads, measures, sizes and lengths), if it differs by more than rounding "
        "(1e-5 of its value, 1e-6 of the largest)"
    )


def _how_much(single: pl.DataFrame, names: Sequence[str], level: float, windows: int) -> Finding:
    heads = single.select("layer", "head").unique().height
    changed = single.filter("changed")
    places = changed.select("layer", "head").unique().sort("layer", "head").rows()
    count = len(places)
    facts: dict[str, Fact] = {
        "heads": heads, "changed heads": count, "rows": len(single), "changed rows": len(changed), "windows": windows,
    }  # fmt: skip
    if single["difference"].abs().max() == 0:
        words = f"{names[0]} and {names[-1]} are the same: all {len(single):,} numbers agree to the last bit"
    elif not count:
        words = (
            f"Nothing changed beyond chance and rounding: no head of {heads}, in "
            f"{many(single['measure'].n_unique(), 'measure')} on {many(windows, 'window')}"
        )
    else:
        words = (
            f"From {names[0]} to {names[-1]} {heads_of(count, heads, 'changes', 'change')} beyond chance: "
            f"{percent(len(changed) / len(single))} of {len(single):,} numbers"
        )
    if count and windows < enough_windows(level):
        words += f"; too few windows to be sure ({windows}): use at least {enough_windows(level)}"
    return Finding("what changed", f"{words}.", _rule(level), facts, tuple(places))


def _loss(together: pl.DataFrame) -> list[Finding]:
    """The loss of the next token, if both sides predict it."""
    rule = "paired over windows; changed if the interval of the difference does not contain 0"
    findings = []
    for row in together.filter(pl.col("measure") == LOSS).to_dicts():
        same = row["low"] is None or row["low"] <= 0 <= row["high"]
        words = "The loss is the same within its interval" if same else "The loss changes"
        findings.append(Finding("loss", f"{words}: {_moved(row).removeprefix(f'{LOSS}, ')}.", rule, _facts(row)))
    return findings


def fitted_findings(table: pl.DataFrame, left_out: Sequence[str]) -> list[Finding]:
    """The mean decay exponent and critical N at the largest length, or why they are not compared."""
    together = table.filter(pl.col("head").is_null() & pl.col("measure").is_in((DECAY, CRITICAL)))
    last = {row["measure"]: row for row in together.sort("length", nulls_last=False).to_dicts()}
    rule = (
        "the decay exponent is fitted over all windows of all lengths, critical N over all heads at the largest length "
        "that has one; both sides are resampled by the same draws; changed if the interval of the difference does not "
        "contain 0"
    )
    compared = []
    for name in (DECAY, CRITICAL):
        if (row := last.get(name)) is None:
            continue
        changed = row["low"] is not None and not row["low"] <= 0 <= row["high"]
        how = "changes" if changed else "is the same within its interval"
        how = "has no interval" if row["low"] is None and row["difference"] != 0 else how
        at = "" if row["length"] is None else f" at {row['length']:,} tokens"
        words = f"{sentence(_label(row))}{at} {how}: {_moved(row).removeprefix(f'{_label(row)}, ')}"
        compared.append(Finding("over lengths", f"{words}.", rule, _facts(row)))
    return compared + [Finding("not compared", line, rule) for line in left_out]


def _largest(single: pl.DataFrame, level: float) -> list[Finding]:
    """The largest change of each of a few heads, of a main measure if one changed."""
    changed = single.filter("changed").sort(pl.col("effect").abs(), descending=True, nulls_last=True)
    main = changed.filter(pl.col("measure").is_in(MAIN))
    changed = main if len(main) else changed
    rows = changed.unique(["layer", "head"], keep="first", maintain_order=True).head(_MOST_HEADS).to_dicts()
    rule = f"{_rule(level)}; ranked by difference over the standard deviation of the measure over heads"
    findings = []
    for row in rows:
        layer, head = row["layer"], row["head"]
        words = f"Layer {layer}, head {head}: {_moved(row)}."
        findings.append(Finding("largest changes", words, rule, _facts(row), ((layer, head),)))
    return findings


def _layers(single: pl.DataFrame, level: float) -> list[Finding]:
    """Where the changed heads lie, if not everywhere."""
    changed = single.filter("changed").select("layer", "head").unique()
    every, touched = single["layer"].unique().sort().to_list(), changed["layer"].unique().sort().to_list()
    if not touched or touched == every:
        return []
    still = [layer for layer in every if layer not in touched]
    words = f"Heads change in {_spans(touched)}; {_spans(still)} {'stays' if len(still) == 1 else 'stay'} as before"
    facts: dict[str, Fact] = {"layers with changes": len(touched), "layers": len(every)}
    return [Finding("layers", f"{words}.", _rule(level), facts)]


def _on_average(together: pl.DataFrame, size: int | None, level: float) -> list[Finding]:
    """Main measures over all heads: what changed, and in one sentence what did not."""
    usual = together.filter(pl.col("measure").is_in(MAIN) & (pl.col("n").is_null() | (pl.col("n") == (size or 0))))
    rows = {row["measure"]: row for row in usual.to_dicts()}
    ordered = [rows[name] for name in MAIN if name in rows]
    rule = f"{_rule(level)}; for means over all heads, over all measures"
    moved = [
        Finding("on average over heads", f"{sentence(_moved(row))}.", rule, _facts(row))
        for row in ordered
        if row["changed"]
    ]
    same = [_label(row) for row in ordered if not row["changed"]]
    if moved and same:
        moved.append(Finding("on average over heads", f"Not changed beyond chance: {', '.join(same)}.", rule))
    return moved


def _moved(row: Mapping[str, Any]) -> str:
    ends = interval(row["low"], row["high"], lambda end: number(end, 3, signed=True))
    by = f"{number(row['difference'], 3, signed=True)}{f', {ends}' if ends else ''}"
    unit = "nats" if row["measure"] == LOSS else measure_words(row["measure"]).unit
    unit = "" if unit in _BARE else unit
    values = f"from {number(row['first'], 3)} to {number(row['second'], 3)}"
    return f"{_label(row)}, {values}{f' {unit}' if unit else ''} ({by})"


def _label(row: Mapping[str, Any]) -> str:
    label = measure_words(row["measure"]).label
    return label + ("" if row["n"] is None else f", N = {row['n']}")


def _facts(row: Mapping[str, Any]) -> dict[str, Fact]:
    facts = {name: row[name] for name in ("first", "second", "difference")}
    return facts | {"interval from": row["low"], "to": row["high"], "q value": row["q_value"], "length": row["length"]}


def _spans(numbers: Sequence[int]) -> str:
    """ "layer 3", "layers 0-2 and 5"."""
    # Neighbours have the same difference to their place.
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    *before, last = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"layer{'' if len(numbers) == 1 else 's'} {', '.join(before)}{' and ' if before else ''}{last}"
