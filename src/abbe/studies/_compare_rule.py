"""The rule of the recommendation: what an alternative must do better, and what it may cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from ._compare_parts import JUDGEMENT_SCHEMA, OWN
from ._report_parts import Fact, Finding

ALLOWED = 0.01  # relative rise of the loss
WORTH = 0.01  # of the weight told apart: a smaller gain is real, but nobody would notice
FEWER = 0.95  # of own's capacity, which is found coarsely
RULE = (
    "An alternative helps if the upper end of the interval of its relative rise of the loss is at most "
    f"{100 * ALLOWED:g} %, and at least one of these holds: the interval of its gain in the weight told apart lies "
    f"above {100 * WORTH:g} %; the interval of its capacity over that of the model's own lies below {FEWER}; the "
    "interval of its needle accuracy lies above the interval of the model's own. Recommended is the one with most of "
    "the three, then the one of least loss. Intervals are over the same windows in pairs, that of an accuracy is "
    "Wilson's; a number without an interval proves nothing."
)
_REASONS = {
    "tells_apart": "tells more of its weight apart",
    "needs_fewer": "needs fewer tokens",
    "retrieves": "finds more needles",
}

Row = Mapping[str, Any]


def judge(table: pl.DataFrame) -> tuple[pl.DataFrame, Finding]:
    """What each alternative of a comparison's table does better, and which one to take."""
    rows = table.to_dicts()
    own = next(row for row in rows if row["normalizer"] == OWN)
    others = [row for row in rows if row["normalizer"] != OWN]
    judged = [judgement(row, own) for row in others]
    helpful = [
        (-sum(found[name] for name in _REASONS), row["loss"], place)
        for place, (row, found) in enumerate(zip(others, judged, strict=True))
        if found["helps"]
    ]
    best = others[min(helpful)[2]] if helpful else None
    finding = _none(others, judged) if best is None else _take(best, judged[min(helpful)[2]])
    return pl.DataFrame(judged, schema=JUDGEMENT_SCHEMA), finding


def judgement(row: Row, own: Row) -> dict[str, Any]:
    """Each part of the rule by itself; what has no interval does not hold."""
    found: dict[str, Any] = {
        "normalizer": row["normalizer"],
        "affordable": _holds(row["loss_rise_high"], lambda high: high <= ALLOWED),
        "tells_apart": _holds(row["told_apart_gain_low"], lambda low: low > WORTH),
        "needs_fewer": _holds(row["capacity_ratio_high"], lambda high: high < FEWER),
        "retrieves": row["needle_accuracy_low"] is not None
        and own["needle_accuracy_high"] is not None
        and row["needle_accuracy_low"] > own["needle_accuracy_high"],
    }
    return found | {"helps": found["affordable"] and any(found[name] for name in _REASONS)}


def _holds(end: float | None, rule: Any) -> bool:
    return end is not None and bool(rule(end))


def _take(row: Row, found: Row) -> Finding:
    reasons = [words for name, words in _REASONS.items() if found[name]]
    told = " and ".join(filter(None, [", ".join(reasons[:-1]), reasons[-1]]))
    sentence = f"{row['normalizer']} helps this model: it {told}, and its loss changes by {_change(row)}."
    names = ("loss_rise", "told_apart_gain", "capacity_ratio", "needle_accuracy")
    return Finding("recommendation", sentence, RULE, _numbers(row, names))


def _none(others: list[dict[str, Any]], judged: list[dict[str, Any]]) -> Finding:
    dear = [row for row, found in zip(others, judged, strict=True) if not found["affordable"]]
    numbers: dict[str, Fact] = {}
    for row in others:
        numbers |= {f"{row['normalizer']}: {name}": x for name, x in _numbers(row, ("loss_rise",)).items()}
    why = "they cost too much" if len(dear) == len(others) else "those that cost little select no better"
    return Finding("recommendation", f"None of these helps this model: {why}.", RULE, numbers)


def _change(row: Row) -> str:
    low, high = row["loss_rise_low"], row["loss_rise_high"]
    interval = "" if low is None or high is None else f" ({100 * low:+.1f} to {100 * high:+.1f} %)"
    return f"{100 * row['loss_rise']:+.1f} %{interval}"


def _numbers(row: Row, names: tuple[str, ...]) -> dict[str, Fact]:
    found: dict[str, Fact] = {}
    for name in names:
        words = name.replace("_", " ")
        found |= {words: row[name], f"{words}, from": row[f"{name}_low"], f"{words}, to": row[f"{name}_high"]}
    return found
