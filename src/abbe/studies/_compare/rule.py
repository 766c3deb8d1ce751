"""The rule of the recommendation: what an alternative must do better, and what it may cost.

More separable weight does not count: cutting off the tail raises it by construction, even on random logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from ...measures import enough_windows
from ...words.finding import Fact, Finding
from ...words.names import BASELINE
from ...words.numbers import interval, percent, with_interval
from .result import JUDGEMENT_SCHEMA

ALLOWED = 0.01  # relative rise of the loss
WORTH = 0.01  # of separable weight: nobody would notice a smaller gain
FEWER = 0.95  # of the baseline's capacity: on the coarse grid a smaller gain may be interpolation error
_USUAL = 0.95
# How often a nominal 95 % interval from this many windows contains the true mean, in simulations: for skewed numbers
# (log-normal, sigma 0.5) and for normal ones. The table of docs/explanation/intervals.md.
COVERAGE = {2: (0.49, 0.49), 3: (0.72, 0.75), 4: (0.84, 0.87), 5: (0.89, 0.92), 6: (0.91, 0.92), 8: (0.90, 0.93)}
_REASONS = {
    "lowers_loss": "lowers the loss",
    "needs_fewer": "has a smaller capacity",
    "retrieves": "finds more needles",
}


def _covered(windows: int) -> str:
    low, high = COVERAGE[windows]
    return interval(low, high, percent) if low < high else percent(low)


def rule(level: float) -> str:
    """The rule for intervals of this level."""
    why = f"the whole range of fewer contains the median in less than {percent(level, 4)} of cases"
    if level == _USUAL:
        why = (
            f"in simulations an interval of nominal {percent(level, 4)} contained the true value in {_covered(8)} of "
            f"cases from 8 windows and {_covered(6)} from 6, but in {_covered(4)} from 4 and {_covered(2)} from 2"
        )
    return (
        "An alternative helps if the upper end of the interval of its relative rise of the loss is at most "
        f"{percent(ALLOWED)}, and at least one of these holds: the interval of its change of the loss lies below 0; "
        f"the interval of its capacity over that of the baseline lies below {FEWER}; the interval of its gain in "
        "needle accuracy lies above 0. The one with most of the three is recommended, among equals the one of least "
        "loss. If none helps, the one with the fewest active tokens is named, among those whose loss is allowed and "
        "whose active tokens are fewer than the baseline's, interval below interval. More separable weight does not "
        f"count: it rises whenever small weights are cut off. All intervals are of nominal {percent(level, 4)}. "
        f"Nothing is recommended from fewer than {enough_windows(level)} windows: {why}. Intervals are over paired "
        "windows; that of the gain is exact over paired prompts, but treats them as independent, although all are made "
        "from one text. A number without an interval proves nothing."
    )


Row = Mapping[str, Any]


def judge(table: pl.DataFrame, windows: int, level: float) -> tuple[pl.DataFrame, Finding]:
    """What each alternative in a comparison's table does better, and which one to take."""
    rows, enough = table.to_dicts(), windows >= enough_windows(level)
    baseline = next(row for row in rows if row["normalizer"] == BASELINE)
    others = [row for row in rows if row["normalizer"] != BASELINE]
    judged = [_judgement(row, enough) for row in others]
    pairs = list(zip(others, judged, strict=True))
    sentence, numbers = _answer(baseline, pairs) if enough else _too_few(windows, level, others)
    return pl.DataFrame(judged, schema=JUDGEMENT_SCHEMA), Finding("recommendation", sentence, rule(level), numbers)


def _judgement(row: Row, enough: bool) -> dict[str, Any]:
    """Each part of the rule alone; none holds without an interval, and nothing helps from too few windows."""
    parts: dict[str, Any] = {
        "normalizer": row["normalizer"],
        "affordable": _below(row["loss_rise_high"], ALLOWED) or row["loss_rise_high"] == ALLOWED,
        "lowers_loss": _below(row["loss_change_high"], 0.0),
        "separates": _below(WORTH, row["separable_gain_low"]),
        "needs_fewer": _below(row["capacity_ratio_high"], FEWER),
        "retrieves": _below(0.0, row["needle_gain_low"]),
    }
    return parts | {"helps": enough and parts["affordable"] and any(parts[name] for name in _REASONS)}


def _below(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and one < other


Answer = tuple[str, dict[str, Fact]]  # a sentence and its numbers


def _answer(baseline: Row, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> Answer:
    helpful = [(row, judged) for row, judged in pairs if judged["helps"]]
    if helpful:
        return _take(*min(helpful, key=lambda pair: (-sum(pair[1][name] for name in _REASONS), pair[0]["loss"])))
    cheap = [row for row, judged in pairs if judged["affordable"]]
    sparser = [row for row in cheap if _below(row["active_high"], baseline["active_low"])]
    if sparser:
        return _sparser(min(sparser, key=lambda row: (row["active"], row["loss"])), baseline)
    why = "none of the cheap ones gains anything" if cheap else "they cost too much"
    return f"None of these helps this model: {why}.", _rises([row for row, _ in pairs])


def _too_few(windows: int, level: float, others: list[dict[str, Any]]) -> Answer:
    nominal = percent(level, 4)
    why = f"the whole range of {windows} windows contains the median in less than {nominal} of cases"
    if windows < 2:
        why = "a single window gives no intervals"
    elif level == _USUAL:
        contained = f"contains the true value in {_covered(windows)} of cases"
        why = f"from {windows} windows an interval of nominal {nominal} {contained}"
    return f"Too few windows to judge: {why}; take at least {enough_windows(level)}.", _rises(others)


def _take(row: Row, judged: Row) -> Answer:
    reasons = [words for name, words in _REASONS.items() if judged[name]]
    listed = " and ".join(filter(None, [", ".join(reasons[:-1]), reasons[-1]]))
    change = with_interval(row["loss_rise"], row["loss_rise_low"], row["loss_rise_high"], _rise)
    sentence = f"{row['normalizer']} helps this model: it {listed}, and its loss changes by {change}."
    return sentence, _numbers(row, ("loss_change", "loss_rise", "capacity_ratio", "needle_gain"))


def _sparser(row: Row, baseline: Row) -> Answer:
    sentence = (
        f"{row['normalizer']} is sparser at little cost ({_count(row['active'])} active tokens instead of "
        f"{_count(baseline['active'])}, loss {_rise(row['loss_rise'])}), but nothing here shows that it helps."
    )
    return sentence, _numbers(row, ("active", "loss_change", "loss_rise", "capacity_ratio", "needle_gain"))


def _count(tokens: float) -> str:
    return f"{tokens:.0f}" if tokens >= 10 else f"{tokens:.1f}"


def _rises(others: list[dict[str, Any]]) -> dict[str, Fact]:
    return {
        f"{row['normalizer']}: {name}": number
        for row in others
        for name, number in _numbers(row, ("loss_rise",)).items()
    }


def _rise(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _numbers(row: Row, names: tuple[str, ...]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    for name in names:
        words = name.replace("_", " ")
        facts |= {words: row[name], f"{words}, from": row[f"{name}_low"], f"{words}, to": row[f"{name}_high"]}
    return facts
