"""The paper's statements about training (arXiv 2508.17821), each judged by a rule that was fixed before any run.

(i) low temperature is hard to train, (ii) sparse or length-aware normalizers decouple selectivity from the health of
gradients, (iii) rising entropy and (iv) falling N_s/N warn early, (v) N_s/N of 70 to 80 % marks a saturated head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from ..words.finding import Fact, Finding
from ..words.numbers import percent
from .judges import BETTER, Gain
from .network import temperature
from .result import Tables, best_run, mean_interval

HARD = 0.05  # loss of accuracy that counts
SLOW = 2.0  # more than this many times the steps to half the loss count, too
LOW = 0.1  # temperatures up to this are low, as in the paper
WARNS = 0.5  # share of failing runs that a warning has to find at the allowed false alarms
BAND, SATURATED = (0.7, 0.8), 0.5  # N_s/N of statement (v); share of saturated rows from which a head is saturated
_SOFTMAX = "softmax"
_RESAMPLES, _SEED = 1000, 0


def judge_temperature(tables: Tables, level: float) -> tuple[Finding, ...]:
    """The five statements, as far as the runs can judge them."""
    table = tables.table
    fixed = [(temperature(t).start, t) for t in table["temperature"].unique() if temperature(t).fixed]
    value, low = min(fixed, default=(math.inf, ""))
    judged: list[Finding] = []
    if value <= LOW and _SOFTMAX in set(table["normalizer"]):
        judged += [_hard(table, optimizer, low, level) for optimizer in _optimizers(table)]
        judged += _normed(table, low, level)
        judged += _decoupled(table, low, level)
    judged += _warning(tables.warnings, "(iii) rising entropy", "entropy_share", "high", "Rising entropy")
    judged += _warning(tables.warnings, "(iv) falling N_s/N", "separability", "low", "A falling N_s/N")
    return (*judged, *_marks(table, tables.curves, level))


@dataclass(frozen=True)
class _Change(Gain):
    """Difference in accuracy between two runs, over the same seeds."""

    slower: float | None  # steps to half the loss, relative to the other run; None if that one never got there

    @property
    def hard(self) -> bool:
        lost = self.mean < -HARD and self.high is not None and self.high < 0
        return lost or (self.slower is not None and self.slower > SLOW)

    def __str__(self) -> str:
        slower = self.slower if self.slower is not None else 0.0
        times = "the loss never halves" if slower == math.inf else f"{slower:.1f} times the steps to half loss"
        pace = f" and {times}" if slower > SLOW else ""
        return f"{_points(self.mean)} points{_ends(self)}{pace}"


def _points(x: float) -> str:
    """A change in percentage points; one that rounds to 0 has no sign."""
    return f"{round(100 * x):+d}" if round(100 * x) else "0"


def _ends(gain: Gain) -> str:
    return "" if gain.low is None or gain.high is None else f" ({_points(gain.low)} to {_points(gain.high)})"


def _optimizers(table: pl.DataFrame) -> list[str]:
    return table["optimizer"].unique(maintain_order=True).to_list()


def _of(table: pl.DataFrame, *, normalizer: str = _SOFTMAX, qk_norm: bool = False, **chosen: Any) -> pl.DataFrame:
    return table.filter(normalizer=normalizer, qk_norm=qk_norm, **chosen)


def _accuracies(rows: pl.DataFrame) -> dict[int, float]:
    """By seed."""
    return dict(rows.select("seed", "accuracy").iter_rows())


def _change(rows: pl.DataFrame, baseline: pl.DataFrame, level: float) -> _Change:
    before, after = _accuracies(baseline), _accuracies(rows)
    mean, low, high = mean_interval([after[seed] - before[seed] for seed in before], level, (-1.0, 1.0))
    steps = [_median(x["half_step"]) for x in (rows, baseline)]
    slower = steps[0] / steps[1] if math.isfinite(steps[1]) else None
    return _Change(mean, low, high, slower)


def _median(steps: pl.Series) -> float:
    """Infinite if at least half of the seeds never got there."""
    return float(np.median(steps.cast(pl.Float64).fill_null(math.inf).to_numpy()))


def _best(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(run=best_run(rows))


def _hard(table: pl.DataFrame, optimizer: str, low: str, level: float) -> Finding:
    """(i): the same rate as at T = 1, the best rate, and the control at the same rate."""
    some = _of(table, optimizer=optimizer)
    baseline = _best(_of(some, temperature="1"))
    rate = baseline["rate"][0]
    plain = _of(some, temperature=low, compensated=False)
    best = _best(plain)["rate"][0]
    same, own = (_change(plain.filter(rate=at), baseline, level) for at in (rate, best))
    undone = _change(_of(some, temperature=low, compensated=True, rate=rate), baseline, level)
    if baseline["failed"].any() or len(baseline) < 2:
        verdict = "cannot be judged: T = 1 was not learned" if len(baseline) > 1 else "cannot be judged by one seed"
    elif own.hard:
        verdict = "holds" if undone.hard else "holds, by scale alone"
    elif own.mean < -HARD:
        verdict = "inconclusive with these seeds"
    else:
        verdict = "holds only at an unchanged rate" if same.hard else "does not hold"
    sentence = (
        f"Low temperature is hard to train ({optimizer}, T = {low}): {verdict}. Against T = 1 at rate {rate:g}, "
        f"accuracy changes by {same} at the same rate, by {own} at its own best rate ({best:g}), and by {undone} in "
        "the control whose query map undoes the temperature."
    )
    rule = (
        f"Hard: accuracy falls by more than {percent(HARD)} with an interval below 0, or half the loss takes more than "
        f"{SLOW:g} times the steps. It holds if it is hard at its own best rate; by scale alone if the control is not. "
        "Inconclusive if that fall of accuracy has an interval that reaches 0."
    )
    numbers: dict[str, Fact] = {
        "optimizer": optimizer, "temperature": low, "rate": rate, "best_rate": best, "same_rate": same.mean,
        "own_rate": own.mean, "control": undone.mean, "accuracy_at_1": baseline["accuracy"].mean(),  # type: ignore[dict-item]
        "verdict": verdict,
    }  # fmt: skip
    return Finding(f"(i) low temperature, {optimizer}", sentence, rule, numbers)


def _normed(table: pl.DataFrame, low: str, level: float) -> list[Finding]:
    """What remains if no map can absorb the scale, because queries and keys are normalized."""
    parts, numbers = [], dict[str, Fact]()
    for optimizer in _optimizers(table):
        some = _of(table, qk_norm=True, optimizer=optimizer)
        if some.is_empty():
            continue
        baseline, rows = (_best(some.filter(temperature=t)) for t in ("1", low))
        change = _change(rows, baseline, level)
        parts.append(f"{optimizer} {change}")
        numbers |= {f"{optimizer}": change.mean, f"{optimizer}_hard": str(change.hard).lower()}
    if not parts:
        return []
    sentence = (
        f"With normalized queries and keys, whose scale no map can absorb, T = {low} at its best rate changes accuracy "
        f"by {'; '.join(parts)} against T = 1."
    )
    rule = "As for (i), each temperature at its own best rate; there is no control, since nothing can undo T."
    return [Finding("(i) with QK-norm", sentence, rule, numbers)]


def _decoupled(table: pl.DataFrame, low: str, level: float) -> list[Finding]:
    """(ii): does another normalizer lose less accuracy at low temperature than softmax does?"""
    holds, numbers, parts = [], dict[str, Fact](), []
    for normalizer in table["normalizer"].unique(maintain_order=True):
        if normalizer == _SOFTMAX:
            continue
        gains = [_gains(table, normalizer, optimizer, low) for optimizer in _optimizers(table)]
        means = [math.fsum(gain[seed] for gain in gains) / len(gains) for seed in gains[0]]
        gain = Gain(*mean_interval(means, level, (-2.0, 2.0)))
        numbers |= gain.numbers(normalizer)
        parts.append(f"{normalizer} {_points(gain.mean)}{_ends(gain)}")
        holds += [normalizer] if gain.verdict == BETTER else []
    if not parts:
        return []
    verdict = f"holds for {', '.join(holds)}" if holds else "does not hold"
    sentence = (
        f"Sparse or length-aware normalizers decouple selectivity from gradient health: {verdict}. Accuracy "
        f"changes from T = 1 to {low}, each at its best rate, by so many points more than that of softmax (mean over "
        f"optimizers): {'; '.join(parts)}."
    )
    rule = (
        "By seed, the change of accuracy from T = 1 to the lowest T at each one's best rate, minus that of softmax, "
        "mean over optimizers. It holds where the interval over seeds lies above 0."
    )
    return [Finding("(ii) other normalizers", sentence, rule, numbers | {"verdict": verdict})]


def _gains(table: pl.DataFrame, normalizer: str, optimizer: str, low: str) -> dict[int, float]:
    """By seed: the change of accuracy at low temperature, minus that of softmax."""

    def change(spec: str) -> dict[int, float]:
        some = _of(table, normalizer=spec, optimizer=optimizer, compensated=False)
        here, there = (_accuracies(_best(some.filter(temperature=t))) for t in (low, "1"))
        return {seed: here[seed] - there[seed] for seed in here}

    of_softmax = change(_SOFTMAX)
    return {seed: x - of_softmax[seed] for seed, x in change(normalizer).items()}


def _warning(warnings: pl.DataFrame, topic: str, quantity: str, direction: str, words: str) -> list[Finding]:
    """(iii) and (iv): does the change of a quantity tell failing runs from healthy ones before the loss does?"""
    rows = warnings.filter(quantity=quantity, direction=direction, kind="change")
    if rows.is_empty():
        return []
    row = rows.row(0, named=True)
    better = row["auc_low"] is not None and row["auc_low"] > 0.5
    verdict = "holds" if better and row["warned"] >= WARNS else "holds weakly" if better else "does not hold"
    lead = "" if row["lead"] is None else f", {row['lead']:.0f} steps (median) before the loss"
    ends = "" if row["auc_low"] is None else f" ({row['auc_low']:.2f} to {row['auc_high']:.2f})"
    sentence = (
        f"{words} warns early of runs that fail: {verdict}. Its AUC is {row['auc']:.2f}{ends}, 0.5 is chance; with at "
        f"most 5 % false alarms it finds {percent(row['warned'])} of {row['failing']} failing runs{lead}."
    )
    rule = (
        f"It holds if the interval of the AUC lies above 0.5 and at least {percent(WARNS)} of the failing runs are "
        "found with at most 5 % false alarms among the healthy ones; weakly if only the first is true."
    )
    names = ("auc", "auc_low", "auc_high", "warned", "false_alarms", "lead")
    return [Finding(topic, sentence, rule, {name: row[name] for name in names} | {"verdict": verdict})]


def _marks(table: pl.DataFrame, curves: pl.DataFrame, level: float) -> list[Finding]:
    """(v): how often is the attention of softmax runs saturated inside the band, below it and above it?"""
    runs = _of(table, compensated=False)["run"].unique()
    known = pl.col("separability").is_not_null() & pl.col("saturated").is_not_null()
    share = pl.col("separability")
    place = pl.when(share < BAND[0]).then(0).when(share <= BAND[1]).then(1).otherwise(2)
    steps = curves.filter(pl.col("run").is_in(runs) & known).select(
        "run", place.alias("place"), (pl.col("saturated") >= SATURATED).cast(pl.Float64).alias("saturated")
    )
    numbers = sorted(steps["run"].unique())
    counts = np.zeros((len(numbers), 3, 2))  # by run and place: saturated steps, all steps
    for run, where, some, all_steps in (
        steps.group_by("run", "place").agg(pl.col("saturated").sum(), pl.len().alias("all")).iter_rows()
    ):
        counts[numbers.index(run), where] = some, all_steps
    totals = counts.sum(0)
    if not len(numbers) or not (totals[0, 1] and totals[1, 1]):
        return []
    below, inside, above = _shares(totals)
    drawn = np.random.default_rng(_SEED).integers(len(numbers), size=(_RESAMPLES, len(numbers)))
    shares = np.array([_shares(counts[some].sum(0)) for some in drawn])
    low, high = np.nanquantile(shares[:, 1] - shares[:, 0], [(1 - level) / 2, (1 + level) / 2])
    if inside <= 0.5 or not low > 0:
        verdict = "does not hold"
    else:
        verdict = "holds from 70 % on, not for a band" if above >= inside - HARD else "holds"
    beyond = "" if math.isnan(above) else f", {percent(above)} of those above it"
    sentence = (
        f"Separability of 70 to 80 % marks a saturated head: {verdict}. {percent(inside)} of the steps inside that "
        f"band are saturated, {percent(below)} of those below (difference {_points(low)} to {_points(high)} points "
        f"over runs){beyond}."
    )
    rule = (
        f"Steps of plain softmax runs; saturated: at least {percent(SATURATED)} of the rows have a weight above 0.99. "
        "It holds if most steps inside the band are saturated, more than below it by an interval from resampled runs, "
        "and more than above it."
    )
    facts: dict[str, Fact] = {
        "inside": inside, "below": below, "above": None if math.isnan(above) else above, "low": float(low),
        "high": float(high), "verdict": verdict,
    }  # fmt: skip
    return [Finding("(v) 70 to 80 %", sentence, rule, facts)]


def _shares(counts: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, float, float]:
    """Shares of saturated steps below, inside and above the band; NaN without steps."""
    below, inside, above = (float(some / steps) if steps else math.nan for some, steps in counts)
    return below, inside, above
