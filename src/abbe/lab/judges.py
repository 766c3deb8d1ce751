"""Rules by which `train_length`, `train_recall` and `train_text` are judged: normalizers compared seed by seed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import polars as pl

from ..words.finding import Fact, Finding
from ..words.lab import HARD_MAXIMUM, HARD_MAXIMUM_NAME, PUBLISHED
from ..words.numbers import number, percent, with_interval
from .result import Tables, best_run, mean_interval, rate_sensitivities

BASELINE = "softmax"
BETTER, WORSE, UNDECIDED = "higher", "lower", "undecided"


@dataclass(frozen=True)
class Gain:
    """Mean difference to the baseline over seeds, with its interval."""

    mean: float
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """Decided if the interval excludes 0."""
        if self.low is None or self.high is None:
            return UNDECIDED
        return BETTER if self.low > 0 else WORSE if self.high < 0 else UNDECIDED

    def numbers(self, name: str) -> dict[str, Fact]:
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}

    def points(self) -> str:
        """In percentage points: "+3.1 (+1.2 to +5)"."""
        return self._formatted(100)

    def plain(self) -> str:
        return self._formatted(1)

    def _formatted(self, factor: float) -> str:
        return with_interval(self.mean, self.low, self.high, lambda x: number(factor * x, 3, signed=True))


def gain(values: Mapping[int, float], baseline: Mapping[int, float], level: float) -> Gain:
    """Over the seeds that both have."""
    return Gain(*mean_interval([values[seed] - baseline[seed] for seed in baseline if seed in values], level))


def at_best_rate(table: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The seeds of the best run of each normalizer, in the order of the runs."""
    return {name: rows.filter(pl.col("run") == best_run(rows)) for name, rows in _by_normalizer(table).items()}


def _by_normalizer(table: pl.DataFrame) -> dict[str, pl.DataFrame]:
    groups = table.partition_by("normalizer", maintain_order=True)
    return {rows["normalizer"][0]: rows for rows in groups}


def baseline_of(names: Sequence[str]) -> str:
    """softmax, or the first one."""
    return BASELINE if BASELINE in names else names[0]


def by_optimizer(tables: Tables) -> list[tuple[str, pl.DataFrame]]:
    """The rows of each optimizer, with a suffix for topics: empty if there is only one."""
    groups = tables.table.partition_by("optimizer", maintain_order=True)
    return [("" if len(groups) == 1 else f", {rows['optimizer'][0]}", rows) for rows in groups]


def by_seed(rows: pl.DataFrame, column: str) -> dict[int, float]:
    """Without seeds that have no finite value."""
    return {seed: x for seed, x in rows.select("seed", column).iter_rows() if x is not None}


def rate_finding(table: pl.DataFrame, more: str, level: float) -> list[Finding]:
    """Sensitivity to the rate against the baseline, and whether the sweep was wide enough; nothing for one rate."""
    if table["rate"].n_unique() < 2:
        return []
    groups = _by_normalizer(table)
    baseline = baseline_of(list(groups))
    sensitive = {name: rate_sensitivities(rows) for name, rows in groups.items()}
    gains = {name: gain(some, sensitive[baseline], level) for name, some in sensitive.items() if name != baseline}
    first = mean_interval(list(sensitive[baseline].values()), level)
    words = [f"{name} {one.plain()}" for name, one in gains.items()]
    differ = [f"{name} ({one.verdict})" for name, one in gains.items() if one.verdict != UNDECIDED]
    edges = [name for name, rows in groups.items() if _at_edge(rows)]
    sentence = (
        f"Sensitivity to the rate: {baseline} loses {with_interval(*first, lambda x: number(x, 3))} nats on average "
        f"over the rates against its best one"
        + (f"; against it: {'; '.join(words)}. " if words else ". ")
        + (f"Different beyond chance: {', '.join(differ)}. " if differ else "No difference is beyond chance. ")
        + (f"At the edge of the sweep, so that a wider one might find better: {', '.join(edges)}." if edges else "")
    ).rstrip()
    rule = (
        "By seed, the mean over rates of min(training loss, first loss) minus the best one (arXiv 2309.14322), each "
        f"minus that of {baseline}. Beyond chance: the {level:.0%} interval over seeds leaves 0 out; intervals are not "
        "widened for the number of comparisons."
    )
    numbers: dict[str, Fact] = {baseline: first[0]}
    for name, one in gains.items():
        numbers |= one.numbers(name)
    return [Finding(f"sensitivity to the rate{more}", sentence, rule, numbers | {"at_edge": ", ".join(edges)})]


def _at_edge(rows: pl.DataFrame) -> bool:
    rates = rows["rate"].unique().sort()
    best = rows.filter(pl.col("run") == best_run(rows))["rate"][0]
    return len(rates) > 2 and best in (rates[0], rates[-1])


def _judge_measure(tables: Tables, level: float, measure: str) -> tuple[Finding, ...]:
    findings: list[Finding] = []
    for more, rows in by_optimizer(tables):
        findings += [_versus(rows, more, measure, level), _pace(rows, more), *rate_finding(rows, more, level)]
    return tuple(findings)


judge_accuracy, judge_loss = partial(_judge_measure, measure="accuracy"), partial(_judge_measure, measure="loss")


def _versus(table: pl.DataFrame, more: str, measure: str, level: float) -> Finding:
    """Held-out accuracy or loss against that of the baseline, paired by seed."""
    best = at_best_rate(table)
    baseline = baseline_of(list(best))
    values = {name: by_seed(rows, measure) for name, rows in best.items()}
    gains = {
        name: gain(some, values[baseline], level)
        for name, some in values.items()
        if name != baseline and set(some) & set(values[baseline])
    }
    good, bad = (BETTER, WORSE) if measure == "accuracy" else (WORSE, BETTER)
    better = [name for name, one in gains.items() if one.verdict == good]
    worse = [name for name, one in gains.items() if one.verdict == bad]
    unknown = [name for name in values if name != baseline and name not in gains]
    first = mean_interval(list(values[baseline].values()), level)[0] if values[baseline] else None
    shown = percent(first, 3) if measure == "accuracy" else f"{number(first, 3)} nats"
    unit = "points" if measure == "accuracy" else "nats"
    words = [f"{name} {one.points() if measure == 'accuracy' else one.plain()}" for name, one in gains.items()]
    words += [f"{name} has no finite one" for name in unknown]
    verdict = f"{', '.join(better) or 'none'} better, {', '.join(worse) or 'none'} worse"
    sentence = (
        f"Against {baseline} (held-out {measure} {shown}), each at its own best rate: {verdict}."
        + (f" Differences in {unit}: {'; '.join(words)}." if words else "")
    )  # fmt: skip
    rule = (
        f"Held-out {measure} minus that of {baseline}, paired by seed, each at the rate of its lowest training loss. "
        f"Better or worse: the {level:.0%} interval over seeds leaves 0 out; intervals are not widened for the number "
        "of comparisons."
    )
    numbers: dict[str, Fact] = {baseline: first}
    for name, one in gains.items():
        numbers |= one.numbers(name)
    return Finding(f"normalizers against {baseline}{more}", sentence, rule, numbers | {"verdict": verdict})


def _pace(table: pl.DataFrame, more: str) -> Finding:
    """Steps to half the first loss: they differ even if all reach the same final loss."""
    steps: dict[str, Fact] = {}
    for name, rows in at_best_rate(table).items():
        halves = by_seed(rows, "half_step")
        steps[name] = statistics.median(halves.values()) if len(halves) == len(rows) else None
    words = [f"{name} {number(x, 3) if x is not None else 'never with all seeds'}" for name, x in steps.items()]
    rule = "Median over seeds of the first step that was read with at most half of the first loss, at the best rate."
    return Finding(f"steps to half the loss{more}", f"Steps to half the first loss: {'; '.join(words)}.", rule, steps)


TRAINED = 16  # items of the longest sets in training
FITS = 0.9  # accuracy at the trained length from which a normalizer has fitted its data
NOTHING = 2.0  # times chance: with less accuracy, nothing generalises
CHANCE = 0.1  # of ten classes
_ByLength = dict[int, dict[int, float]]  # accuracy by length and seed


def judge_length(tables: Tables, level: float) -> tuple[Finding, ...]:
    findings: list[Finding] = []
    for more, table in by_optimizer(tables):
        rows = table.with_columns(pl.col("normalizer").replace(HARD_MAXIMUM, HARD_MAXIMUM_NAME))
        best = at_best_rate(rows)
        by_length = {name: _by_length(tables.lengths, some["run"][0]) for name, some in best.items()}
        findings += [_decay(name, by_length[name], more, level) for name in PUBLISHED if name in by_length]
        findings += [*_against(by_length, more, level), *_at_equal_rates(rows, tables.lengths, more, level)]
        findings += [_fit(best, by_length, more, level), *_learned(best, more), *rate_finding(rows, more, level)]
    return tuple(findings)


def _by_length(lengths: pl.DataFrame, run: int) -> _ByLength:
    by_length: _ByLength = {}
    for seed, length, accuracy in lengths.filter(run=run).select("seed", "length", "accuracy").iter_rows():
        by_length.setdefault(length, {})[seed] = accuracy
    return dict(sorted(by_length.items()))


def _shown(value: tuple[float, float | None, float | None]) -> str:
    return with_interval(*value, lambda x: percent(x, 3))


def _decay(name: str, by_length: _ByLength, more: str, level: float) -> Finding:
    """Accuracy by length, next to the published numbers."""
    rows = {n: mean_interval(list(some.values()), level, (0.0, 1.0)) for n, some in by_length.items()}
    first, last = min(rows), max(rows)
    fall = gain(by_length[last], by_length[first], level)
    falls = all(rows[a][0] >= rows[b][0] for a, b in pairwise(rows))
    halved = rows[last][0] < rows[first][0] / 2
    shared = [n for n in rows if n in PUBLISHED[name]]
    apart = sum(abs(rows[n][0] - PUBLISHED[name][n]) for n in shared) / len(shared) if shared else None
    if fall.verdict != WORSE:
        verdict = "does not decay"
    else:
        verdict = "decays by more than half" if falls and halved else "decays, by less than half or not at every length"
    published = ", ".join(f"{n:,}: {percent(PUBLISHED[name][n], 3)}" for n in shared)
    sentence = (
        f"{name} {verdict} on sets longer than those it was trained on: "
        + "; ".join(f"{n:,} items {_shown(value)}" for n, value in rows.items())
        + (f". Published: {published}; on average {number(100 * (apart or 0.0), 3)} points apart." if shared else ".")
    )
    rule = (
        "At the rate of the lowest training loss. It decays if accuracy at the longest sets is below that at the "
        f"shortest, paired by seed, with a {level:.0%} interval beyond 0; by more than half if it also falls at every "
        "length and ends below half of its first value. The distance to the published numbers is reported, not judged."
    )
    numbers: dict[str, Fact] = {f"accuracy_{n}": value[0] for n, value in rows.items()}
    numbers |= {f"published_{n}": PUBLISHED[name][n] for n in shared} | fall.numbers("fall")
    return Finding(f"{name} by length{more}", sentence, rule, numbers | {"apart": apart, "verdict": verdict})


def _against(by_length: dict[str, _ByLength], more: str, level: float) -> list[Finding]:
    """Accuracy against that of softmax, by seed, on the longest sets and on average over all longer than trained."""
    longer = [n for n in next(iter(by_length.values())) if n > TRAINED]
    if len(by_length) < 2 or not longer:
        return []
    last = longer[-1]
    findings = [_compared(by_length, [last], "on the longest sets", f"With {last:,} items", more, level)]
    if len(longer) > 1:
        words = f"On average over {', '.join(f'{n:,}' for n in longer)} items"
        findings.append(_compared(by_length, longer, "on longer sets", words, more, level))
    return findings


def _compared(
    by_length: dict[str, _ByLength], lengths: list[int], topic: str, words: str, more: str, level: float
) -> Finding:
    baseline = baseline_of(list(by_length))
    gains = _gains(by_length, lengths, baseline, level)
    higher = [name for name, one in gains.items() if one.verdict == BETTER]
    lower = [name for name, one in gains.items() if one.verdict == WORSE]
    sentence = (
        f"{words}, more accurate than {baseline}: {', '.join(higher) or 'none'}; less: {', '.join(lower) or 'none'}. "
        f"Differences in points: {'; '.join(f'{name} {one.points()}' for name, one in gains.items())}."
    )
    rule = (
        f"Accuracy minus that of {baseline}, paired by seed and tested on the same sets, each at the rate of its "
        f"lowest training loss; more or less where the {level:.0%} interval over seeds leaves 0 out. Intervals are not "
        "widened for the number of comparisons."
    )
    numbers: dict[str, Fact] = {"lengths": ", ".join(map(str, lengths))}
    numbers |= {"higher": ", ".join(higher), "lower": ", ".join(lower)}
    for name, one in gains.items():
        numbers |= one.numbers(name)
    return Finding(f"normalizers against {baseline} {topic}{more}", sentence, rule, numbers)


def _gains(by_length: Mapping[str, _ByLength], lengths: list[int], baseline: str, level: float) -> dict[str, Gain]:
    """Mean accuracy over these lengths minus that of the baseline, paired by seed."""
    means = {name: _mean_by_seed(rows, lengths) for name, rows in by_length.items()}
    return {name: gain(some, means[baseline], level) for name, some in means.items() if name != baseline}


def _mean_by_seed(rows: _ByLength, lengths: list[int]) -> dict[int, float]:
    return {seed: sum(rows[n][seed] for n in lengths) / len(lengths) for seed in rows[lengths[0]]}


def _at_equal_rates(table: pl.DataFrame, lengths: pl.DataFrame, more: str, level: float) -> list[Finding]:
    """The same differences at each rate: rates of nearly the same training loss may differ far beyond its lengths."""
    runs = table.unique("run", maintain_order=True)
    baseline = baseline_of(runs["normalizer"].to_list())
    longer = sorted(n for n in lengths["length"].unique() if n > TRAINED)
    if min(runs["rate"].n_unique(), runs["normalizer"].n_unique()) < 2 or not longer:
        return []
    own, parts, numbers = [], [], dict[str, Fact]()
    for (rate,), some in runs.group_by("rate", maintain_order=True):
        by_length = {name: _by_length(lengths, run) for name, run in some.select("normalizer", "run").iter_rows()}
        if baseline not in by_length:  # failed on another machine
            continue
        alone = mean_interval(list(_mean_by_seed(by_length[baseline], longer).values()), level, (0.0, 1.0))
        gains = _gains(by_length, longer, baseline, level)
        own.append(f"{rate:g} {_shown(alone)}")
        points = (f"{name} {number(100 * one.mean, 3, signed=True)}" for name, one in gains.items())
        parts.append(f"at {rate:g} {', '.join(points)}")
        numbers[f"{baseline}@{rate:g}"] = alone[0]
        for name, one in gains.items():
            numbers |= one.numbers(f"{name}@{rate:g}")
    sentence = (
        f"On average over {', '.join(f'{n:,}' for n in longer)} items, {baseline} by learning rate: {'; '.join(own)}. "
        f"Differences to it at the same rate, in points: {'; '.join(parts)}."
    )
    rule = (
        "The rate is chosen by the training loss, which cannot tell rates apart that differ on longer sets. So here "
        "each is compared at every rate, paired by seed, with seeds that failed to train."
    )
    return [Finding(f"normalizers against {baseline} at equal rates{more}", sentence, rule, numbers)]


def _fit(best: dict[str, pl.DataFrame], by_length: dict[str, _ByLength], more: str, level: float) -> Finding:
    """Accuracy at the shortest and the longest sets: fitting is not yet generalising."""
    last = max(next(iter(by_length.values())))
    ends = {
        name: [
            mean_interval(list(some.values()), level, (0.0, 1.0))
            for some in (by_seed(rows, "accuracy"), by_length[name][last])
        ]
        for name, rows in best.items()
    }
    only = [name for name, (fit, far) in ends.items() if fit[0] >= FITS and far[0] <= NOTHING * CHANCE]
    misfit = [name for name, (fit, _) in ends.items() if fit[0] < FITS]
    sentence = (
        f"Accuracy with {TRAINED} items, as trained, and with {last:,}: "
        + "; ".join(f"{name} {_shown(fit)}, then {_shown(far)}" for name, (fit, far) in ends.items())
        + f". Fitted, but generalised to nothing: {', '.join(only) or 'none'}; "
        + f"not fitted: {', '.join(misfit) or 'none'}."
    )
    rule = (
        f"Fitted: at least {percent(FITS)} on new sets of {TRAINED}. Generalised to nothing: at most {NOTHING:g} times "
        f"chance ({percent(CHANCE)}) on the longest. Means over seeds, each at the rate of its lowest training loss."
    )
    numbers: dict[str, Fact] = {}
    for name, (fit, far) in ends.items():
        numbers |= {f"{name}_{TRAINED}": fit[0], f"{name}_{last}": far[0]}
    numbers |= {"only_fitted": ", ".join(only), "not_fitted": ", ".join(misfit)}
    return Finding(f"fit and generalisation{more}", sentence, rule, numbers)


def _learned(best: dict[str, pl.DataFrame], more: str) -> list[Finding]:
    values = {name: rows["learned"].drop_nulls().to_list() for name, rows in best.items()}
    values = {name: some for name, some in values.items() if some}
    if not values:
        return []
    sentence = "Learned, seed by seed: " + "; ".join(f"{name}: {' | '.join(some)}" for name, some in values.items())
    rule = "The normalizers at the end of training, as specs, at the rate of the lowest training loss."
    return [Finding(f"learned values{more}", f"{sentence}.", rule, {name: " | ".join(x) for name, x in values.items()})]
