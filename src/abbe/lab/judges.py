"""Rules by which experiments are judged, each fixed before any run.

Normalizers are compared seed by seed, each at its own best rate. The paper's statements about training (arXiv
2508.17821): (i) low temperature is hard to train, (ii) sparse or length-aware normalizers decouple selectivity from the
health of gradients, (iii) rising entropy and (iv) falling N_s/N warn early, (v) N_s/N of 70 to 80 % marks a saturated
head.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from ..results import Estimate
from ..words.finding import Fact, Finding
from ..words.numbers import number, percent
from .network import temperature
from .result import HARD_MAXIMUM, HARD_MAXIMUM_NAME, PUBLISHED, Experiment
from .tables import LEVEL, Floats, best_rows, mean_interval, rate_sensitivities, resampled_interval

BASELINE = "softmax"
BySeed = dict[int, float]
Findings = Iterator[Finding]
_three, _percent = partial(number, digits=3), partial(percent, digits=3)
_RESAMPLES = 1000


# -- Rules ------------------------------------------------------------------------------------------------------------

TRAINED = 16  # items of the longest sets in training
FITS = 0.9  # accuracy at the trained length from which a normalizer has fitted its data
NOTHING = 2.0  # times chance: with less accuracy, nothing generalises
CHANCE = 0.1  # of ten classes
HARD = 0.05  # loss of accuracy that counts
SLOW = 2.0  # more than this many times the steps to half the loss count, too
LOW = 0.1  # temperatures up to this are low, as in the paper
WARNS = 0.5  # share of failing runs that a warning has to find at the allowed false alarms
BAND, SATURATED = (0.7, 0.8), 0.5  # N_s/N of statement (v); share of saturated rows from which a head is saturated
_AT_BEST = "each at the rate of its lowest training loss"
_BEYOND = f"the {LEVEL:.0%} interval over seeds leaves 0 out; intervals are not widened for the number of comparisons."
RULES = {
    "versus": "Held-out {measure} minus that of {baseline}, paired by seed, "
    f"{_AT_BEST}. Better or worse: {_BEYOND}",
    "pace": "Median over seeds of the first step that was read with at most half of the first loss, at the best rate.",
    "rates": "By seed, the mean over rates of min(training loss, first loss) minus the best one (arXiv 2309.14322), "
    "each minus that of {baseline}. "
    f"Beyond chance: {_BEYOND}",
    "decay": "At the rate of the lowest training loss. It decays if accuracy at the longest sets is below that at the "
    f"shortest, paired by seed, with a {LEVEL:.0%} interval beyond 0; by more than half if it also falls at every "
    "length and ends below half of its first value. The distance to the published numbers is reported, not judged.",
    "longer": "Accuracy minus that of {baseline}, paired by seed and tested on the same sets, "
    f"{_AT_BEST}; more or less where {_BEYOND}",
    "equal rates": "The rate is chosen by the training loss, which cannot tell rates apart that differ on longer sets. "
    "So here each is compared at every rate, paired by seed, with seeds that failed to train.",
    "fit": f"Fitted: at least {percent(FITS)} on new sets of {TRAINED}. Generalised to nothing: at most {NOTHING:g} "
    f"times chance ({percent(CHANCE)}) on the longest. Means over seeds, {_AT_BEST}.",
    "learned": "The normalizers at the end of training, as specs, at the rate of the lowest training loss.",
    "(i)": f"Hard: accuracy falls by more than {percent(HARD)} with an interval below 0, or half the loss takes more "
    f"than {SLOW:g} times the steps. It holds if it is hard at its own best rate; by scale alone if the control is "
    "not. Inconclusive if that fall of accuracy has an interval that reaches 0.",
    "(i), QK-norm": "As for (i), each temperature at its own best rate; there is no control, since nothing can undo T.",
    "(ii)": "By seed, the change of accuracy from T = 1 to the lowest T at each one's best rate, minus that of "
    "softmax, mean over optimizers. It holds where the interval over seeds lies above 0.",
    "(iii) and (iv)": f"It holds if the interval of the AUC lies above 0.5 and at least {percent(WARNS)} of the "
    "failing runs are found with at most 5 % false alarms among the healthy ones; weakly if only the first is true.",
    "(v)": f"Steps of plain softmax runs; saturated: at least {percent(SATURATED)} of the rows have a weight above "
    "0.99. It holds if most steps inside the band are saturated, more than below it by an interval from resampled "
    "runs, and more than above it.",
}


# -- Normalizers against a baseline -----------------------------------------------------------------------------------


class _Gains(dict[str, Estimate]):
    """Mean differences to the baseline over the seeds that both have; those without such seeds are left out."""

    def __init__(self, values: Mapping[str, BySeed]) -> None:
        self.baseline = _baseline(values)
        first = values[self.baseline]
        paired = {name: [by_seed[i] - first[i] for i in first if i in by_seed] for name, by_seed in values.items()}
        super().__init__(
            {name: mean_interval(gains) for name, gains in paired.items() if name != self.baseline and gains}
        )

    @property
    def higher(self) -> list[str]:
        return [name for name, gain in self.items() if gain.above(0)]

    @property
    def lower(self) -> list[str]:
        return [name for name, gain in self.items() if gain.below(0)]

    def words(self, factor: float = 1) -> list[str]:
        return [f"{name} {gain.text(partial(_signed, factor=factor))}" for name, gain in self.items()]

    def numbers(self, after: str = "") -> dict[str, Fact]:
        return _columns({f"{name}{after}": gain for name, gain in self.items()})


def _columns(estimates: Mapping[str, Estimate]) -> dict[str, Fact]:
    return {key: x for name, estimate in estimates.items() for key, x in estimate.columns(name).items()}


def _baseline(names: Iterable[str]) -> str:
    """softmax, or the first one."""
    listed = list(names)
    return BASELINE if BASELINE in listed else listed[0]


def _signed(x: float, factor: float = 1) -> str:
    return number(factor * x, 3, signed=True)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _by_normalizer(table: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {rows["normalizer"][0]: rows for rows in table.partition_by("normalizer", maintain_order=True)}


def _at_best_rate(table: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The seeds of the best run of each normalizer, in the order of the runs."""
    return {name: best_rows(rows) for name, rows in _by_normalizer(table).items()}


def _by_optimizer(table: pl.DataFrame, judge: Callable[[pl.DataFrame], Findings]) -> Findings:
    """What is found in the rows of each optimizer; topics name it if there are several."""
    groups = table.partition_by("optimizer", maintain_order=True)
    for rows in groups:
        more = "" if len(groups) == 1 else f", {rows['optimizer'][0]}"
        yield from (replace(finding, topic=finding.topic + more) for finding in judge(rows))


def _by_seed(rows: pl.DataFrame, column: str) -> BySeed:
    """Without seeds that have no finite value."""
    return dict(rows.select("seed", column).drop_nulls().iter_rows())


def _rates(table: pl.DataFrame) -> Findings:
    """Sensitivity to the rate against the baseline, and whether the sweep was wide enough; nothing for one rate."""
    if table["rate"].n_unique() < 2:
        return
    groups = _by_normalizer(table)
    sensitive = {name: rate_sensitivities(rows) for name, rows in groups.items()}
    gains = _Gains(sensitive)
    baseline, words = gains.baseline, gains.words()
    first = mean_interval(sensitive[baseline].values())
    decided = dict.fromkeys(gains.higher, "higher") | dict.fromkeys(gains.lower, "lower")
    differ = [f"{name} ({decided[name]})" for name in gains if name in decided]
    edges = [name for name, rows in groups.items() if _at_edge(rows)]
    sentence = (
        f"Sensitivity to the rate: {baseline} loses {first.text(_three)} nats on average over the rates against its "
        "best one"
        + (f"; against it: {'; '.join(words)}. " if words else ". ")
        + (f"Different beyond chance: {', '.join(differ)}. " if differ else "No difference is beyond chance. ")
        + (f"At the edge of the sweep, so that a wider one might find better: {', '.join(edges)}." if edges else "")
    ).rstrip()
    numbers = {baseline: first.value, **gains.numbers(), "at_edge": ", ".join(edges)}
    yield Finding("sensitivity to the rate", sentence, RULES["rates"].format(baseline=baseline), numbers)


def _at_edge(rows: pl.DataFrame) -> bool:
    rates = rows["rate"].unique().sort()
    return len(rates) > 2 and best_rows(rows)["rate"][0] in (rates[0], rates[-1])


def judge_accuracy(experiment: Experiment) -> Findings:
    """Held-out accuracy against that of the baseline, pace, and rates."""
    return _by_optimizer(experiment.table, partial(_versus, measure="accuracy"))


def judge_loss(experiment: Experiment) -> Findings:
    """Held-out loss against that of the baseline, pace, and rates."""
    return _by_optimizer(experiment.table, partial(_versus, measure="loss"))


def _versus(table: pl.DataFrame, measure: str) -> Findings:
    """Paired by seed; steps to half the first loss, which differ even if all reach the same final loss; rates."""
    best = _at_best_rate(table)
    values = {name: _by_seed(rows, measure) for name, rows in best.items()}
    gains = _Gains(values)
    baseline = gains.baseline
    first = mean_interval(values[baseline].values()).value if values[baseline] else None
    if measure == "accuracy":
        shown, unit, words, better, worse = percent(first, 3), "points", gains.words(100), gains.higher, gains.lower
    else:
        shown, unit, words, better, worse = f"{number(first, 3)} nats", "nats", gains.words(), gains.lower, gains.higher
    words += [f"{name} has no finite one" for name in values if name != baseline and name not in gains]
    verdict = f"{_listed(better)} better, {_listed(worse)} worse"
    sentence = f"Against {baseline} (held-out {measure} {shown}), each at its own best rate: {verdict}." + (
        f" Differences in {unit}: {'; '.join(words)}." if words else ""
    )
    rule = RULES["versus"].format(measure=measure, baseline=baseline)
    numbers = {baseline: first, **gains.numbers(), "verdict": verdict}
    yield Finding(f"normalizers against {baseline}", sentence, rule, numbers)
    halves = {name: rows["half_step"] for name, rows in best.items()}
    steps: dict[str, Fact] = {name: None if x.has_nulls() else statistics.median(x) for name, x in halves.items()}
    words = [f"{name} {number(x, 3) if x is not None else 'never with all seeds'}" for name, x in steps.items()]
    sentence = f"Steps to half the first loss: {'; '.join(words)}."
    yield Finding("steps to half the loss", sentence, RULES["pace"], steps)
    yield from _rates(table)


# -- Longer sets than in training -------------------------------------------------------------------------------------

_ByLength = dict[int, BySeed]  # accuracy by length and seed


def judge_length(experiment: Experiment) -> Findings:
    """Accuracy by length beside what was published, comparisons on longer sets, fit, learned values, rates."""
    named = experiment.table.with_columns(pl.col("normalizer").replace(HARD_MAXIMUM, HARD_MAXIMUM_NAME))
    return _by_optimizer(named, partial(_over_lengths, lengths=experiment.lengths))


def _over_lengths(table: pl.DataFrame, lengths: pl.DataFrame) -> Findings:
    longer = sorted(n for n in lengths["length"].unique() if n > TRAINED)
    best = _at_best_rate(table)
    by_length = {name: _by_length(lengths, rows["run"][0]) for name, rows in best.items()}
    yield from (_decay(name, by_length[name]) for name in PUBLISHED if name in by_length)
    if len(by_length) > 1 and longer:
        yield _compared(by_length, longer[-1:], "on the longest sets", f"With {longer[-1]:,} items")
    if len(by_length) > 1 and len(longer) > 1:
        words = f"On average over {', '.join(f'{n:,}' for n in longer)} items"
        yield _compared(by_length, longer, "on longer sets", words)
    if longer:
        yield from _at_equal_rates(table, lengths, longer)
    yield _fit(best, by_length)
    learned = {name: " | ".join(rows["learned"].drop_nulls()) for name, rows in best.items()}
    values: dict[str, Fact] = {name: words for name, words in learned.items() if words}
    sentence = f"Learned, seed by seed: {'; '.join(f'{name}: {words}' for name, words in values.items())}."
    yield from [Finding("learned values", sentence, RULES["learned"], values)] if values else ()
    yield from _rates(table)


def _by_length(lengths: pl.DataFrame, run: int) -> _ByLength:
    groups = lengths.filter(run=run).sort("length", maintain_order=True).group_by("length", maintain_order=True)
    return {int(length): dict(rows.select("seed", "accuracy").iter_rows()) for (length,), rows in groups}


def _mean(by_seed: BySeed) -> Estimate:
    return mean_interval(by_seed.values(), (0.0, 1.0))


def _decay(name: str, by_length: _ByLength) -> Finding:
    """Accuracy by length, next to the published numbers."""
    rows = {n: _mean(by_seed) for n, by_seed in by_length.items()}
    first, last = min(rows), max(rows)
    fall = mean_interval(by_length[last][seed] - x for seed, x in by_length[first].items())
    falls = all(rows[a].value >= rows[b].value for a, b in pairwise(rows))
    halved = rows[last].value < rows[first].value / 2
    known = {n: PUBLISHED[name][n] for n in rows if n in PUBLISHED[name]}
    apart = sum(abs(rows[n].value - x) for n, x in known.items()) / len(known) if known else None
    if not fall.below(0):
        verdict = "does not decay"
    else:
        verdict = "decays by more than half" if falls and halved else "decays, by less than half or not at every length"
    published = ", ".join(f"{n:,}: {_percent(x)}" for n, x in known.items())
    sentence = (
        f"{name} {verdict} on sets longer than those it was trained on: "
        + "; ".join(f"{n:,} items {value.text(_percent)}" for n, value in rows.items())
        + (f". Published: {published}; on average {number(100 * (apart or 0.0), 3)} points apart." if known else ".")
    )
    numbers: dict[str, Fact] = {f"accuracy_{n}": value.value for n, value in rows.items()}
    numbers |= {f"published_{n}": x for n, x in known.items()}
    numbers |= {**fall.columns("fall"), "apart": apart, "verdict": verdict}
    return Finding(f"{name} by length", sentence, RULES["decay"], numbers)


def _compared(by_length: dict[str, _ByLength], lengths: Sequence[int], topic: str, words: str) -> Finding:
    """Accuracy against that of the baseline, by seed, on average over these lengths."""
    gains = _Gains({name: _mean_by_seed(rows, lengths) for name, rows in by_length.items()})
    baseline = gains.baseline
    sentence = (
        f"{words}, more accurate than {baseline}: {_listed(gains.higher)}; less: {_listed(gains.lower)}. "
        f"Differences in points: {'; '.join(gains.words(100))}."
    )
    rule = RULES["longer"].format(baseline=baseline)
    facts = {"lengths": lengths, "higher": gains.higher, "lower": gains.lower}
    numbers = {name: ", ".join(map(str, listed)) for name, listed in facts.items()} | gains.numbers()
    return Finding(f"normalizers against {baseline} {topic}", sentence, rule, numbers)


def _mean_by_seed(rows: _ByLength, lengths: Sequence[int]) -> BySeed:
    return {seed: sum(rows[n][seed] for n in lengths) / len(lengths) for seed in rows[lengths[0]]}


def _at_equal_rates(table: pl.DataFrame, lengths: pl.DataFrame, longer: Sequence[int]) -> Findings:
    """The same differences at each rate: rates of nearly the same training loss may differ far beyond its lengths."""
    runs = table.unique("run", maintain_order=True)
    baseline = _baseline(runs["normalizer"])
    if min(runs["rate"].n_unique(), runs["normalizer"].n_unique()) < 2:
        return
    own, parts, numbers = [], [], dict[str, Fact]()
    for (rate,), some in runs.group_by("rate", maintain_order=True):
        pairs = some.select("normalizer", "run").iter_rows()
        means = {name: _mean_by_seed(_by_length(lengths, run), longer) for name, run in pairs}
        if baseline not in means:  # failed on another machine
            continue
        alone, gains = _mean(means[baseline]), _Gains(means)
        own.append(f"{rate:g} {alone.text(_percent)}")
        points = (f"{name} {_signed(gain.value, 100)}" for name, gain in gains.items())
        parts.append(f"at {rate:g} {', '.join(points)}")
        numbers |= {f"{baseline}@{rate:g}": alone.value} | gains.numbers(f"@{rate:g}")
    sentence = (
        f"On average over {', '.join(f'{n:,}' for n in longer)} items, {baseline} by learning rate: {'; '.join(own)}. "
        f"Differences to it at the same rate, in points: {'; '.join(parts)}."
    )
    yield Finding(f"normalizers against {baseline} at equal rates", sentence, RULES["equal rates"], numbers)


def _fit(best: dict[str, pl.DataFrame], by_length: dict[str, _ByLength]) -> Finding:
    """Accuracy at the shortest and the longest sets: fitting is not yet generalising."""
    last = max(next(iter(by_length.values())))
    ends = {name: (_mean(_by_seed(rows, "accuracy")), _mean(by_length[name][last])) for name, rows in best.items()}
    only = [name for name, (fit, far) in ends.items() if fit.value >= FITS and far.value <= NOTHING * CHANCE]
    misfit = [name for name, (fit, _) in ends.items() if fit.value < FITS]
    words = [f"{name} {fit.text(_percent)}, then {far.text(_percent)}" for name, (fit, far) in ends.items()]
    sentence = (
        f"Accuracy with {TRAINED} items, as trained, and with {last:,}: {'; '.join(words)}. Fitted, but generalised "
        f"to nothing: {_listed(only)}; not fitted: {_listed(misfit)}."
    )
    numbers: dict[str, Fact] = {}
    for name, (fit, far) in ends.items():
        numbers |= {f"{name}_{TRAINED}": fit.value, f"{name}_{last}": far.value}
    numbers |= {"only_fitted": ", ".join(only), "not_fitted": ", ".join(misfit)}
    return Finding("fit and generalisation", sentence, RULES["fit"], numbers)


# -- The paper's statements -------------------------------------------------------------------------------------------


def judge_temperature(experiment: Experiment) -> Findings:
    """The five statements, as far as the runs can judge them."""
    table, warnings = experiment.table, experiment.warnings
    fixed = [(temperature(t).start, t) for t in table["temperature"].unique() if temperature(t).fixed]
    value, low = min(fixed, default=(math.inf, ""))
    optimizers = table["optimizer"].unique(maintain_order=True).to_list()
    if value <= LOW and BASELINE in set(table["normalizer"]):
        yield from (_hard(table, optimizer, low) for optimizer in optimizers)
        yield from _normed(table, optimizers, low)
        yield from _decoupled(table, optimizers, low)
    yield from _warning(warnings, "(iii) rising entropy", "entropy_share", "high", "Rising entropy")
    yield from _warning(warnings, "(iv) falling N_s/N", "separability", "low", "A falling N_s/N")
    yield from _marks(table, experiment.curves)


@dataclass(frozen=True)
class _Change:
    """Difference in accuracy between two runs over the same seeds, and in the steps to half the loss."""

    accuracy: Estimate
    slower: float | None  # steps relative to the other run; None if that one never got there

    @classmethod
    def of(cls, rows: pl.DataFrame, baseline: pl.DataFrame) -> _Change:
        before, after = _by_seed(baseline, "accuracy"), _by_seed(rows, "accuracy")
        accuracy = mean_interval((after[seed] - before[seed] for seed in before), (-1.0, 1.0))
        # Infinite if at least half of the seeds never got there.
        halves = (x["half_step"].cast(pl.Float64).fill_null(math.inf).to_numpy() for x in (rows, baseline))
        ours, theirs = (float(np.median(steps)) for steps in halves)
        return cls(accuracy, ours / theirs if math.isfinite(theirs) else None)

    @property
    def hard(self) -> bool:
        lost = self.accuracy.value < -HARD and self.accuracy.below(0)
        return lost or (self.slower is not None and self.slower > SLOW)

    def __str__(self) -> str:
        slower = self.slower if self.slower is not None else 0.0
        times = "the loss never halves" if slower == math.inf else f"{slower:.1f} times the steps to half loss"
        low, high = self.accuracy.low, self.accuracy.high
        ends = "" if low is None or high is None else f" ({_points(low)} to {_points(high)})"
        return f"{_points(self.accuracy.value)} points{ends}{f' and {times}' if slower > SLOW else ''}"


def _points(x: float) -> str:
    """A change in percentage points; one that rounds to 0 has no sign."""
    return f"{round(100 * x):+d}" if round(100 * x) else "0"


def _of(table: pl.DataFrame, *, normalizer: str = BASELINE, qk_norm: bool = False, **chosen: Any) -> pl.DataFrame:
    return table.filter(normalizer=normalizer, qk_norm=qk_norm, **chosen)


def _hard(table: pl.DataFrame, optimizer: str, low: str) -> Finding:
    """(i): the same rate as at T = 1, the best rate, and the control at the same rate."""
    of_softmax = _of(table, optimizer=optimizer)
    baseline = best_rows(_of(of_softmax, temperature="1"))
    rate = baseline["rate"][0]
    plain = _of(of_softmax, temperature=low, compensated=False)
    best = best_rows(plain)["rate"][0]
    same, own = (_Change.of(plain.filter(rate=at), baseline) for at in (rate, best))
    undone = _Change.of(_of(of_softmax, temperature=low, compensated=True, rate=rate), baseline)
    if baseline["failed"].any() or len(baseline) < 2:
        verdict = "cannot be judged: T = 1 was not learned" if len(baseline) > 1 else "cannot be judged by one seed"
    elif own.hard:
        verdict = "holds" if undone.hard else "holds, by scale alone"
    elif own.accuracy.value < -HARD:
        verdict = "inconclusive with these seeds"
    else:
        verdict = "holds only at an unchanged rate" if same.hard else "does not hold"
    sentence = (
        f"Low temperature is hard to train ({optimizer}, T = {low}): {verdict}. Against T = 1 at rate {rate:g}, "
        f"accuracy changes by {same} at the same rate, by {own} at its own best rate ({best:g}), and by {undone} in "
        "the control whose query map undoes the temperature."
    )
    numbers: dict[str, Any] = {"optimizer": optimizer, "temperature": low, "rate": rate, "best_rate": best}
    numbers |= {"same_rate": same.accuracy.value, "own_rate": own.accuracy.value, "control": undone.accuracy.value}
    numbers |= {"accuracy_at_1": baseline["accuracy"].mean(), "verdict": verdict}
    return Finding(f"(i) low temperature, {optimizer}", sentence, RULES["(i)"], numbers)


def _normed(table: pl.DataFrame, optimizers: Sequence[str], low: str) -> Findings:
    """What remains if no map can absorb the scale, because queries and keys are normalized."""
    parts, numbers = [], dict[str, Fact]()
    for optimizer in optimizers:
        normed = _of(table, qk_norm=True, optimizer=optimizer)
        if not normed.is_empty():
            baseline, rows = (best_rows(normed.filter(temperature=t)) for t in ("1", low))
            change = _Change.of(rows, baseline)
            parts.append(f"{optimizer} {change}")
            numbers |= {optimizer: change.accuracy.value, f"{optimizer}_hard": str(change.hard).lower()}
    sentence = (
        f"With normalized queries and keys, whose scale no map can absorb, T = {low} at its best rate changes accuracy "
        f"by {'; '.join(parts)} against T = 1."
    )
    yield from [Finding("(i) with QK-norm", sentence, RULES["(i), QK-norm"], numbers)] if parts else ()


def _decoupled(table: pl.DataFrame, optimizers: Sequence[str], low: str) -> Findings:
    """(ii): does another normalizer lose less accuracy at low temperature than softmax does?"""

    def change(spec: str, optimizer: str) -> BySeed:
        rows = _of(table, normalizer=spec, optimizer=optimizer, compensated=False)
        here, there = (_by_seed(best_rows(rows.filter(temperature=t)), "accuracy") for t in (low, "1"))
        return {seed: here[seed] - there[seed] for seed in here}

    each: dict[str, Estimate] = {}
    of_softmax = [change(BASELINE, optimizer) for optimizer in optimizers]
    for spec in table["normalizer"].unique(maintain_order=True):
        if spec != BASELINE:
            pairs = list(zip([change(spec, optimizer) for optimizer in optimizers], of_softmax, strict=True))
            means = [math.fsum(x[seed] - first[seed] for x, first in pairs) / len(pairs) for seed in pairs[0][0]]
            each[spec] = mean_interval(means, (-2.0, 2.0))
    higher = [name for name, gain in each.items() if gain.above(0)]
    verdict = f"holds for {', '.join(higher)}" if higher else "does not hold"
    sentence = (
        f"Sparse or length-aware normalizers decouple selectivity from gradient health: {verdict}. Change of accuracy "
        f"from T = 1 to {low} beyond that of softmax, each at its best rate, in points (mean over optimizers): "
        f"{'; '.join(f'{name} {gain.text(_points)}' for name, gain in each.items())}."
    )
    numbers = _columns(each) | {"verdict": verdict}
    yield from [Finding("(ii) other normalizers", sentence, RULES["(ii)"], numbers)] if each else ()


def _warning(warnings: pl.DataFrame, topic: str, quantity: str, direction: str, words: str) -> Findings:
    """(iii) and (iv): does the change of a quantity tell failing runs from healthy ones before the loss does?"""
    for row in warnings.filter(quantity=quantity, direction=direction, kind="change").to_dicts():
        auc = Estimate(row["auc"], row["auc_low"], row["auc_high"])
        weakly = "holds" if row["warned"] >= WARNS else "holds weakly"
        verdict = weakly if auc.above(0.5) else "does not hold"
        lead = "" if row["lead"] is None else f", {row['lead']:.0f} steps (median) before the loss"
        sentence = (
            f"{words} warns early of runs that fail: {verdict}. Its AUC is {auc.text('{:.2f}'.format)}, 0.5 is chance; "
            f"with at most 5 % false alarms it finds {percent(row['warned'])} of {row['failing']} failing runs{lead}."
        )
        names = ("auc", "auc_low", "auc_high", "warned", "false_alarms", "lead")
        numbers = {name: row[name] for name in names} | {"verdict": verdict}
        yield Finding(topic, sentence, RULES["(iii) and (iv)"], numbers)


def _marks(table: pl.DataFrame, curves: pl.DataFrame) -> Findings:
    """(v): how often is the attention of softmax runs saturated inside the band, below it and above it?"""
    runs = _of(table, compensated=False)["run"].unique()
    share, saturated = pl.col("separability"), pl.col("saturated")
    known = curves.filter(pl.col("run").is_in(runs) & share.is_not_null() & saturated.is_not_null())
    numbers, places = np.unique(known["run"], return_inverse=True)
    side = known.select((share >= BAND[0]).cast(int) + (share > BAND[1]).cast(int)).to_series()
    counts = np.zeros((len(numbers), 3, 2))  # by run and side of the band: saturated steps, all steps
    np.add.at(counts, (places, side), known.select((saturated >= SATURATED).cast(float), pl.lit(1.0)).to_numpy())
    below, inside, above = _shares(counts)
    if math.isnan(below) or math.isnan(inside):
        return

    def more_inside(drawn: Any) -> float:
        below, inside, _ = _shares(counts[drawn])
        return inside - below

    low, high = resampled_interval(len(numbers), more_inside, _RESAMPLES)
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
    facts = {"inside": inside, "below": below, "above": None if math.isnan(above) else above}
    facts |= {"low": low, "high": high}
    yield Finding("(v) 70 to 80 %", sentence, RULES["(v)"], facts | {"verdict": verdict})


def _shares(counts: Floats) -> tuple[float, ...]:
    """Shares of saturated steps of these runs below, inside and above the band; NaN without steps."""
    return tuple(float(some / steps) if steps else math.nan for some, steps in counts.sum(0))
