"""Which monitored quantity warns early of runs that will fail, and how often it raises false alarms in healthy runs.

A run fails if its training loss ends above half of the first one. Its loss shows this, at the latest, at twice the step
by which 90 % of the healthy runs have halved theirs; earlier if it rises above the first loss by a twentieth. Only
crossings before that step count as warnings; in a healthy run every crossing, at any step, is a false alarm. Controls
and runs that are only too slow are left out (`not_too_slow`). That step is the same for nearly all failing runs, so a
lead says when a quantity crosses, rather than how much earlier than the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from ..training import list_rules
from ..words.lab import CHOICE
from .result import ROC_SCHEMA, ROSE, WARNING_SCHEMA, best_run

SLOW, RESERVE = 0.9, 2.0  # quantile of the healthy runs' half_step, and the factor by which to wait longer
ALLOWED = 0.05  # false alarms at the suggested threshold
_RESAMPLES, _SEED, _LEVEL = 400, 0, 0.95


@dataclass(frozen=True)
class Signal:
    """A number per step whose large values might warn: a level, or its change since the first step."""

    quantity: str
    direction: str  # "high" or "low"
    kind: str  # "level" or "change"

    def of(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Large means alarming; NaN if nothing was measured."""
        moved = values - values[0] if self.kind == "change" else values
        return moved if self.direction == "high" else -moved

    def threshold(self, score: float) -> float:
        return score if self.direction == "high" else -score


SIGNALS = (
    Signal("entropy_share", "low", "level"),
    Signal("entropy_share", "high", "level"),
    Signal("entropy_share", "high", "change"),
    Signal("separability", "low", "change"),
    Signal("separability", "low", "level"),
    Signal("max_logit", "high", "level"),
    Signal("logit_change", "high", "level"),
    Signal("saturated", "high", "level"),
    Signal("sensitivity", "low", "level"),
    Signal("gradient_ratio", "low", "level"),
    Signal("query_gradient", "low", "level"),
)


@dataclass(frozen=True)
class _SeedRun:
    """One seed of one run."""

    run: int
    seed: int
    failed: bool
    evident: float  # step at which the loss shows the failure; infinite for a healthy run
    steps: np.ndarray[Any, Any]
    values: dict[str, np.ndarray[Any, Any]]

    def score(self, signal: Signal) -> float:
        """The most alarming value before the loss shows the failure; -inf if there is none."""
        before = signal.of(self.values[signal.quantity])[self.steps < self.evident]
        return float(np.nanmax(before)) if len(before) and not np.isnan(before).all() else -math.inf

    def first(self, signal: Signal, score: float) -> float | None:
        """The first step that reaches this score."""
        reached = self.steps[np.nan_to_num(signal.of(self.values[signal.quantity]), nan=-math.inf) >= score]
        return float(reached[0]) if len(reached) and reached[0] < self.evident else None


def warning_table(table: pl.DataFrame, curves: pl.DataFrame, alerts: pl.DataFrame, steps: int) -> pl.DataFrame:
    """A row for each signal at its suggested threshold, and for each alert of the monitor as it is."""
    failing, healthy = _failing_and_healthy(table, curves, steps)
    if not failing or not healthy:
        return pl.DataFrame(schema=WARNING_SCHEMA)
    rows = [_signal_row(signal, failing, healthy) for signal in SIGNALS]
    rows += [_rule_row(rule.name, alerts, failing, healthy) for rule in list_rules()]
    return pl.DataFrame(rows, schema=WARNING_SCHEMA, orient="row")


def roc_table(table: pl.DataFrame, curves: pl.DataFrame, steps: int) -> pl.DataFrame:
    """For each signal and threshold, the shares of healthy runs with an alarm and of failing runs with a warning."""
    failing, healthy = _failing_and_healthy(table, curves, steps)
    rows = []
    for signal in SIGNALS if failing and healthy else ():
        bad, good = (np.array([x.score(signal) for x in some]) for some in (failing, healthy))
        scores = np.unique(np.concatenate([bad, good]))[::-1]
        for score in scores[np.isfinite(scores)]:
            shares = float((good >= score).mean()), float((bad >= score).mean())
            rows.append((signal.quantity, signal.direction, signal.kind, signal.threshold(float(score)), *shares))
    return pl.DataFrame(rows, schema=ROC_SCHEMA, orient="row")


def not_too_slow(table: pl.DataFrame) -> pl.DataFrame:
    """Without rates below the best one of the same choice, and without controls.

    Runs at a smaller rate fail because they are slow, which no quantity has to warn of. A control repeats the run at
    T = 1: counted again, it would make false alarms look rare.
    """
    frames = []
    for rows in table.filter(~pl.col("compensated")).partition_by(*CHOICE, maintain_order=True):
        best = rows.filter(pl.col("run") == best_run(rows))["rate"][0]
        frames.append(rows.filter(pl.col("rate") >= best))
    return pl.concat(frames)


def shown_at(table: pl.DataFrame, steps: int) -> float:
    """The last step by which the loss of a failing run shows that it fails."""
    halves = table.filter(~pl.col("failed"))["half_step"].drop_nulls()
    slow = halves.quantile(SLOW, "higher") if len(halves) else None
    return min(float(steps), RESERVE * slow) if slow is not None else float(steps)


def _failing_and_healthy(
    table: pl.DataFrame, curves: pl.DataFrame, steps: int
) -> tuple[list[_SeedRun], list[_SeedRun]]:
    table = not_too_slow(table)
    latest = shown_at(table, steps)
    by_run = {(run, seed): rows for (run, seed), rows in curves.group_by("run", "seed", maintain_order=True)}
    runs = []
    for row in table.iter_rows(named=True):
        rows = by_run[row["run"], row["seed"]]
        step = rows["step"].to_numpy()
        evident = math.inf
        if row["failed"]:
            losses = rows["loss"].fill_null(math.inf).to_numpy()
            risen = step[(losses > ROSE * row["start_loss"]) & (step > 1)]
            evident = min([latest, *risen[:1].astype(float)])
        quantities = {signal.quantity for signal in SIGNALS}
        values = {name: rows[name].cast(pl.Float64).fill_null(math.nan).to_numpy() for name in quantities}
        runs.append(_SeedRun(row["run"], row["seed"], row["failed"], evident, step, values))
    return [x for x in runs if x.failed], [x for x in runs if not x.failed]


def _signal_row(signal: Signal, failing: Sequence[_SeedRun], healthy: Sequence[_SeedRun]) -> dict[str, Any]:
    bad, good = (np.array([x.score(signal) for x in runs]) for runs in (failing, healthy))
    least = _least_score(bad, good)
    warnings = [(first, x.evident) for x in failing if (first := x.first(signal, least)) is not None]
    low, high = _auc_interval(signal, failing, healthy)
    return {
        "quantity": signal.quantity, "direction": signal.direction, "kind": signal.kind,
        "threshold": signal.threshold(least) if math.isfinite(least) else None, "failing": len(bad),
        "healthy": len(good), "false_alarms": float((good >= least).mean()),
        "auc": auc(bad, good), "auc_low": low, "auc_high": high, **_leads(warnings, len(failing)),
    }  # fmt: skip


def _least_score(bad: np.ndarray[Any, Any], good: np.ndarray[Any, Any]) -> float:
    """The least score of a failing run that at most `ALLOWED` of the healthy runs reach; infinite if there is none.

    It is moved halfway to the healthy scores below.
    """
    for candidate in np.unique(bad[np.isfinite(bad)]):
        if (good >= candidate).mean() <= ALLOWED:
            below = good[np.isfinite(good) & (good < candidate)]
            return float((candidate + below.max()) / 2 if len(below) else candidate)
    return math.inf


def _rule_row(
    rule: str, alerts: pl.DataFrame, failing: Sequence[_SeedRun], healthy: Sequence[_SeedRun]
) -> dict[str, Any]:
    """How well an alert of the monitor does."""
    rows = alerts.filter(rule=rule).select("run", "seed", "step").iter_rows()
    raised = {(run, seed): step for run, seed, step in rows}
    steps = [(raised.get((x.run, x.seed), math.inf), x.evident) for x in failing]
    alarms = sum((x.run, x.seed) in raised for x in healthy)
    return {
        "quantity": rule, "kind": "alert", "failing": len(failing), "healthy": len(healthy),
        "false_alarms": alarms / len(healthy), **_leads([pair for pair in steps if pair[0] < pair[1]], len(failing)),
    }  # fmt: skip


def _leads(warnings: Sequence[tuple[float, float]], failing: int) -> dict[str, float | None]:
    """From the steps of warnings, each with the step at which the loss shows the failure."""
    leads = [evident - step for step, evident in warnings]
    shares = [(evident - step) / evident for step, evident in warnings]
    return {"warned": len(warnings) / failing, "lead": _median(leads), "lead_share": _median(shares)}


def auc(bad: np.ndarray[Any, Any], good: np.ndarray[Any, Any]) -> float:
    """How often a failing run has a higher score than a healthy one; ties count half."""
    # By ranks among the healthy: intervals need it thousands of times, and scipy's test would also compute a p value.
    ranked = np.sort(good)
    below, up_to = (np.searchsorted(ranked, bad, side) for side in ("left", "right"))
    return float((below + up_to).mean()) / (2 * len(good))


def _auc_interval(
    signal: Signal, failing: Sequence[_SeedRun], healthy: Sequence[_SeedRun]
) -> tuple[float | None, float | None]:
    """By resampling runs: the seeds of one run are similar, so they stay together."""
    groups: dict[int, tuple[list[float], list[float]]] = {}
    for one in (*failing, *healthy):
        groups.setdefault(one.run, ([], []))[not one.failed].append(one.score(signal))
    runs = list(groups.values())
    random = np.random.default_rng(_SEED)
    drawn = []
    for _ in range(_RESAMPLES):
        chosen = [runs[i] for i in random.integers(len(runs), size=len(runs))]
        bad, good = (np.array([x for one in chosen for x in one[place]]) for place in (0, 1))
        if len(bad) and len(good):
            drawn.append(auc(bad, good))
    if len(runs) < 3 or not drawn:
        return None, None
    low, high = np.quantile(drawn, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None
