"""train_recall and train_text, judged: is any normalizer better than softmax, each at its best rate?"""

from __future__ import annotations

import statistics
from functools import partial

import polars as pl

from ....words.finding import Fact, Finding
from ....words.numbers import number, percent
from ..tables import Tables, mean_interval
from .paired import BETTER, WORSE, at_best_rate, baseline_of, by_optimizer, by_seed, gain, rate_finding


def _judge(tables: Tables, level: float, measure: str) -> tuple[Finding, ...]:
    findings: list[Finding] = []
    for more, rows in by_optimizer(tables):
        findings += [_versus(rows, more, measure, level), _pace(rows, more), *rate_finding(rows, more, level)]
    return tuple(findings)


judge_accuracy, judge_loss = partial(_judge, measure="accuracy"), partial(_judge, measure="loss")


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
