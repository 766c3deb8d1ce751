"""Normalizers compared seed by seed, each at its best rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from ....words.finding import Fact, Finding
from ....words.numbers import number, with_interval
from ..tables import Tables, best_run, mean_interval, rate_sensitivities

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
