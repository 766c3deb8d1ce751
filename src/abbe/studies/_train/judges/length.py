"""train_length, judged: does softmax decay, which normalizers keep more or only fit, and what was learned?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import polars as pl

from ....words.finding import Fact, Finding
from ....words.lab import HARD_MAXIMUM, HARD_MAXIMUM_NAME, PUBLISHED
from ....words.numbers import number, percent, with_interval
from ..tables import Tables, mean_interval
from .paired import BETTER, WORSE, Gain, at_best_rate, baseline_of, by_optimizer, by_seed, gain, rate_finding

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
    means = {name: _by_seed(rows, lengths) for name, rows in by_length.items()}
    return {name: gain(some, means[baseline], level) for name, some in means.items() if name != baseline}


def _by_seed(rows: _ByLength, lengths: list[int]) -> dict[int, float]:
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
        alone = mean_interval(list(_by_seed(by_length[baseline], longer).values()), level, (0.0, 1.0))
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
