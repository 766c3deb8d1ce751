"""Tables from records, and a recommendation from tables.

Capacity is found as in `abbe capacity`, but always over the loss of the baseline: a normalizer that is worse than the
baseline by more than tau with all its keys has no capacity.
The rule says what an alternative must do better, and what it may cost. More separable weight does not count: cutting
off the tail raises it by construction, even on random logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
from torch import Tensor

from ...measures import USUAL_SIZE, bootstrap_interval, enough_windows, resampled_means
from ...results import Estimate
from ...runs.inputs import Settings, plain_settings, window_settings
from ...words.finding import Fact, Finding
from ...words.names import BASELINE, JUMPS, RENORMALISED
from ...words.numbers import interval, percent, with_interval
from .._shared.estimates import paired_gain, resampled_estimate, share_right, window_numbers
from .._shared.prompts import DECOYS, DEPTHS, Prompt
from .._shared.truncation import COARSE, EXACT, Curve
from .._shared.truncation import interval as crossing_interval
from .result import Comparison

SELECTIVITY = ("effective_tokens", "active", "zeros", "separability", "separable", "distance_per_token")
Record = Mapping[str, Any]  # "windows", "capacity", "sensitivity" and "theory" of one normalizer, or one of these


@dataclass(frozen=True)
class CompareSettings:
    """Everything besides model and text that decides the numbers."""

    length: int
    windows: int
    queries: int
    tau: float
    needle_lengths: tuple[int, ...]
    prompts: int  # of each kind, length and depth
    calibrate: bool
    seed: int
    level: float
    resamples: int
    grid: str = COARSE  # of the capacity search

    def reading(self) -> Settings:
        """How windows are read."""
        return window_settings(self.length, self.windows, self.queries, self.seed, self.level, self.resamples)

    def as_json(self) -> dict[str, Any]:
        return plain_settings(self) | {
            "size": USUAL_SIZE, "depths": list(DEPTHS), "capacity_over": BASELINE, "needle_words": "of the text",
            "needle_decoys": DECOYS,
        }  # fmt: skip


# -- Tables -----------------------------------------------------------------------------------------------------------


def comparison_table(
    records: Mapping[str, Record], speed: Mapping[str, Mapping[str, Any]], needle: pl.DataFrame,
    settings: CompareSettings,
) -> pl.DataFrame:  # fmt: skip
    """A row for every normalizer, the baseline first."""
    baseline, rows = records[BASELINE], []
    for name, record in records.items():
        numbers = {column: window_numbers(record["windows"][column]) for column in SELECTIVITY}
        numbers["separable_gain"] = numbers["separable"] - window_numbers(baseline["windows"]["separable"])
        estimates = {column: mean_over(of_windows, settings) for column, of_windows in numbers.items()}
        estimates |= losses(record["windows"], baseline["windows"], settings)
        estimates |= capacities(record["capacity"], baseline["capacity"], settings)
        estimates |= sensitivities(record["sensitivity"], settings)
        row: dict[str, Any] = {"normalizer": name} | costs_row(name, record, speed)
        for column, estimate in estimates.items():
            row |= estimate.columns(column)
        whole = needle.filter((pl.col("normalizer") == name) & pl.col("kind").is_null()).to_dicts()
        rows.append(row | {f"needle_{key}": value for found in whole for key, value in found.items()})
    return Comparison.frame().of(rows)


def losses(windows: Record, baseline: Record, settings: CompareSettings) -> dict[str, Estimate]:
    """Loss, perplexity, and the change from the baseline in nats and as a share of its loss."""
    loss, before = window_numbers(windows["loss"]), window_numbers(baseline["loss"])
    mean, mean_before = (resampled_means(x, settings.resamples, settings.seed) for x in (loss, before))
    change, change_mean = (loss - before).mean(), mean - mean_before
    measured = {
        "loss": (loss.mean(), mean),
        "perplexity": (loss.mean().exp(), mean.exp()),
        "loss_change": (change, change_mean),
        "loss_rise": (change / before.mean(), change_mean / mean_before),
    }
    return {name: resampled_estimate(*each, len(loss), settings.level) for name, each in measured.items()}


def mean_over(values: Tensor, settings: CompareSettings) -> Estimate:
    """Mean over the windows that have the number."""
    drawn = resampled_means(values, settings.resamples, settings.seed)
    return resampled_estimate(values.nanmean(), drawn, int((~torch.isnan(values)).sum()), settings.level)


def sensitivities(record: Record, settings: CompareSettings) -> dict[str, Estimate]:
    """Sensitivity of alternative and baseline at equal selectivity, and their ratio; none if no head matches."""
    if not record["alternative"]:
        return {}
    mine, theirs = window_numbers(record["alternative"]), window_numbers(record["baseline"])
    drawn, drawn_theirs = (resampled_means(x, settings.resamples, settings.seed) for x in (mine, theirs))
    ratio = mine.mean() / theirs.mean()
    return {
        "sensitivity": mean_over(mine, settings),
        "sensitivity_own": mean_over(theirs, settings),
        "sensitivity_ratio": resampled_estimate(ratio, drawn / drawn_theirs, len(mine), settings.level),
    }


def costs_row(name: str, record: Record, speed: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The columns that have no interval."""
    seconds, memory, sensitivity = speed["seconds"], speed["megabytes"], record["sensitivity"]
    known = memory[name] is not None and memory[BASELINE] is not None
    return {
        "temperature": sensitivity["temperature"],
        "matched_heads": sensitivity["matched"] / sensitivity["heads"],
        JUMPS: sensitivity["jumps"],
        "sensitivity_theory": record["theory"],
        "time_ratio": seconds[name] / seconds[BASELINE],
        "seconds": seconds[name],
        "extra_megabytes": memory[name] - memory[BASELINE] if known else None,
    }


def curve_record(curve: Curve) -> dict[str, Any]:
    points = dict(zip(curve.sizes, curve.truncated.tolist(), strict=True))
    return {"untouched": curve.untouched, "full": curve.full.tolist(), "points": points}


def _recorded_curve(record: Record, baseline: Record, settings: CompareSettings) -> Curve:
    points = {int(size): losses for size, losses in record["points"].items()}
    sizes = tuple(sorted(points))
    truncated = torch.stack([window_numbers(points[size]) for size in sizes]) if sizes else torch.empty(0, 0)
    full, before = window_numbers(record["full"]), window_numbers(baseline["full"])
    return Curve(
        settings.length, RENORMALISED, None, record["untouched"], settings.grid == EXACT, sizes, before, full,
        truncated.double().view(len(sizes), len(full)),
    )  # fmt: skip


def capacities(record: Record, baseline: Record, settings: CompareSettings) -> dict[str, Estimate]:
    """N* by the rise over the baseline's loss, and its ratio to that of the baseline, on the same windows.

    The ratio is of crossings, not of whole numbers: rounded up, small ones would stand still or jump.
    """
    mine, theirs = (_recorded_curve(one, baseline, settings) for one in (record, baseline))
    drawn, drawn_theirs = (curve.resampled(settings.resamples, settings.seed) for curve in (mine, theirs))
    ratio = mine.crossing(settings.tau) / theirs.crossing(settings.tau)
    ratios = None
    if drawn is not None and drawn_theirs is not None:
        ratios = mine.crossing(settings.tau, drawn) / theirs.crossing(settings.tau, drawn_theirs)
    estimates = {
        "capacity": mine.capacity(settings.tau, drawn, settings.level),
        "capacity_ratio": Estimate(float(ratio), *crossing_interval(ratios, settings.level, len(mine.baseline))),
    }
    # An unknown value has no interval.
    return {name: one if math.isfinite(one.value) else Estimate(math.nan) for name, one in estimates.items()}


def needle_table(
    prompts: Sequence[Prompt], margins_of: Mapping[str, Sequence[float]], settings: CompareSettings
) -> pl.DataFrame:
    """A row for every normalizer and cell: all; each kind; each kind and length, or depth, or both.

    Accuracy has Wilson's interval, the margin one by resampling prompts. All answered the same prompts; gains are over
    the baseline, which has none itself.
    """
    cells: dict[tuple[Any, Any, Any], list[int]] = {}
    for place, prompt in enumerate(prompts):
        kind, length, depth = prompt.kind, prompt.length, prompt.depth
        keys = ((None, None), (length, None), (None, depth), (length, depth))
        for key in ((None, None, None), *((kind, *each) for each in keys)):
            cells.setdefault(key, []).append(place)
    rows = []
    for name, margins in margins_of.items():
        for (kind, length, depth), places in cells.items():
            row = {"normalizer": name, "kind": kind, "length": length, "depth": depth, "prompts": len(places)}
            row["chance"] = sum(prompts[place].chance for place in places) / len(places)
            before, mine = ([of[place] > 0 for place in places] for of in (margins_of[BASELINE], margins))
            values = torch.tensor([margins[place] for place in places], dtype=torch.float64)
            ends = bootstrap_interval(values, settings.level, settings.resamples, settings.seed)
            row |= share_right(sum(mine), len(mine), settings.level).columns("accuracy")
            row |= Estimate(float(values.mean()), *map(float, ends)).columns("margin")
            rows.append(row | ({} if name == BASELINE else paired_gain(before, mine, settings.level).columns("gain")))
    return Comparison.frame("needle").of(rows)


# -- The rule ---------------------------------------------------------------------------------------------------------

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
    return Comparison.frame("judgements").of(judged), Finding("recommendation", sentence, rule(level), numbers)


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


def _below(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and low < high


Answer = tuple[str, dict[str, Fact]]  # a sentence and its numbers
_TOLD = ("loss_change", "loss_rise", "capacity_ratio", "needle_gain")


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
    return f"{row['normalizer']} helps this model: it {listed}, and its loss changes by {change}.", _numbers(
        row, *_TOLD
    )


def _sparser(row: Row, baseline: Row) -> Answer:
    sentence = (
        f"{row['normalizer']} is sparser at little cost ({_count(row['active'])} active tokens instead of "
        f"{_count(baseline['active'])}, loss {_rise(row['loss_rise'])}), but nothing here shows that it helps."
    )
    return sentence, _numbers(row, "active", *_TOLD)


def _count(tokens: float) -> str:
    return f"{tokens:.0f}" if tokens >= 10 else f"{tokens:.1f}"


def _rises(others: list[dict[str, Any]]) -> dict[str, Fact]:
    return {f"{row['normalizer']}: {key}": fact for row in others for key, fact in _numbers(row, "loss_rise").items()}


def _rise(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _numbers(row: Row, *names: str) -> dict[str, Fact]:
    ends = {"": "", "_low": ", from", "_high": ", to"}
    return {name.replace("_", " ") + words: row[name + end] for name in names for end, words in ends.items()}
