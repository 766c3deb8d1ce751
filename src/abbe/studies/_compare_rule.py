"""The rule of the recommendation: what an alternative must do better, and what it may cost.

That it tells more apart is no reason: cutting off a tail of weights raises that by construction, on random logits too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from ._compare_parts import JUDGEMENT_SCHEMA, OWN
from ._report_parts import Fact, Finding

ALLOWED = 0.01  # relative rise of the loss
WORTH = 0.01  # of the weight told apart: a smaller gain is real, but nobody would notice
FEWER = 0.95  # of own's capacity, which is found coarsely
ENOUGH = 6  # windows: from fewer the intervals are too narrow
# How often an interval of nominal 95 % from so many windows holds the true mean, measured: between those of normal
# numbers and of skewed ones (gamma of shape 4), which differ by 2 % at most.
COVERAGE = {2: 0.49, 3: 0.74, 4: 0.87, 5: 0.91, 6: 0.92, 8: 0.93}


def _percent(windows: int) -> str:
    return f"{100 * COVERAGE[windows]:.0f} %"


RULE = (
    "An alternative helps if the upper end of the interval of its relative rise of the loss is at most "
    f"{100 * ALLOWED:g} %, and at least one of these holds: the interval of its change of the loss lies below 0; the "
    f"interval of its capacity over that of the model's own lies below {FEWER}; the interval of its gain in needle "
    "accuracy lies above 0. Recommended is the one with most of the three, then the one of least loss. If none helps, "
    "the one with the fewest active tokens is named among those whose loss is allowed and whose active tokens are "
    "fewer than the model's own, interval below interval. More weight told apart is no reason: it rises whenever small "
    f"weights are cut off. Nothing is recommended from fewer than {ENOUGH} windows: an interval of nominal 95 % was "
    f"measured to hold the truth in about {_percent(8)} of cases from 8 windows and {_percent(6)} from 6, but "
    f"in {_percent(4)} from 4 and {_percent(2)} from 2. Intervals are over the same windows in pairs; that of "
    "the gain is exact over the same prompts in pairs, but takes them as independent, although all are made from one "
    "text. A number without an interval proves nothing."
)
_REASONS = {
    "lowers_loss": "lowers the loss",
    "needs_fewer": "needs fewer tokens",
    "retrieves": "finds more needles",
}

Row = Mapping[str, Any]


def judge(table: pl.DataFrame, windows: int) -> tuple[pl.DataFrame, Finding]:
    """What each alternative of a comparison's table from so many windows does better, and which one to take."""
    rows = table.to_dicts()
    own = next(row for row in rows if row["normalizer"] == OWN)
    others = [row for row in rows if row["normalizer"] != OWN]
    judged = [judgement(row, windows) for row in others]
    pairs = list(zip(others, judged, strict=True))
    finding = _finding(own, pairs) if windows >= ENOUGH else _too_few(windows, others)
    return pl.DataFrame(judged, schema=JUDGEMENT_SCHEMA), finding


def judgement(row: Row, windows: int) -> dict[str, Any]:
    """Each part of the rule by itself; what has no interval does not hold, and nothing helps from too few windows."""
    found: dict[str, Any] = {
        "normalizer": row["normalizer"],
        "affordable": _below(row["loss_rise_high"], ALLOWED) or row["loss_rise_high"] == ALLOWED,
        "lowers_loss": _below(row["loss_change_high"], 0.0),
        "tells_apart": _below(WORTH, row["told_apart_gain_low"]),
        "needs_fewer": _below(row["capacity_ratio_high"], FEWER),
        "retrieves": _below(0.0, row["needle_gain_low"]),
    }
    return found | {"helps": windows >= ENOUGH and found["affordable"] and any(found[name] for name in _REASONS)}


def _below(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and one < other


def _finding(own: Row, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> Finding:
    helpful = [(row, found) for row, found in pairs if found["helps"]]
    if helpful:
        return _take(*min(helpful, key=lambda pair: (-sum(pair[1][name] for name in _REASONS), pair[0]["loss"])))
    cheap = [row for row, found in pairs if found["affordable"]]
    sparser = [row for row in cheap if _below(row["active_high"], own["active_low"])]
    if sparser:
        return _sparser(min(sparser, key=lambda row: (row["active"], row["loss"])), own)
    why = "none of those that cost little gains anything" if cheap else "they cost too much"
    return Finding("recommendation", f"None of these helps this model: {why}.", RULE, _rises([row for row, _ in pairs]))


def _too_few(windows: int, others: list[dict[str, Any]]) -> Finding:
    why = "from a single window there are no intervals"
    if windows > 1:
        why = (
            f"from {windows} windows an interval of nominal 95 % holds the truth in about {_percent(windows)} of cases"
        )
    sentence = f"Too few windows to tell: {why}; take at least {ENOUGH}."
    return Finding("recommendation", sentence, RULE, _rises(others))


def _take(row: Row, found: Row) -> Finding:
    reasons = [words for name, words in _REASONS.items() if found[name]]
    told = " and ".join(filter(None, [", ".join(reasons[:-1]), reasons[-1]]))
    sentence = f"{row['normalizer']} helps this model: it {told}, and its loss changes by {_change(row)}."
    names = ("loss_change", "loss_rise", "capacity_ratio", "needle_gain")
    return Finding("recommendation", sentence, RULE, _numbers(row, names))


def _sparser(row: Row, own: Row) -> Finding:
    sentence = (
        f"{row['normalizer']} is sparser at little cost ({_count(row['active'])} active tokens instead of "
        f"{_count(own['active'])}, loss {100 * row['loss_rise']:+.1f} %), but nothing here shows that it helps."
    )
    numbers = _numbers(row, ("active", "loss_change", "loss_rise", "capacity_ratio", "needle_gain"))
    return Finding("recommendation", sentence, RULE, numbers)


def _count(tokens: float) -> str:
    return f"{tokens:.0f}" if tokens >= 10 else f"{tokens:.1f}"


def _rises(others: list[dict[str, Any]]) -> dict[str, Fact]:
    found: dict[str, Fact] = {}
    for row in others:
        found |= {f"{row['normalizer']}: {name}": x for name, x in _numbers(row, ("loss_rise",)).items()}
    return found


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
