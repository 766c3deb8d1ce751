"""The tables of an experiment from its finished runs, and which monitored quantity warns early of runs that will fail.

A run fails if its training loss ends above half of the first one. Its loss shows this, at the latest, at twice the step
by which 90 % of the healthy runs have halved theirs; earlier if it rises above the first loss by a twentieth. Only
crossings before that step count as warnings; in a healthy run every crossing, at any step, is a false alarm. Controls
and runs that are only too slow are left out (`not_too_slow`). That step is the same for nearly all failing runs, so a
lead says when a quantity crosses, rather than how much earlier than the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from ..results import Estimate
from ..training import list_rules
from .result import CHOICE, Experiment
from .run import QUANTITIES, Configuration

LEVEL, _SEED = 0.95, 0  # of all intervals
ROSE = 1.05  # times the first loss: a rise beyond the differences between batches
LAST = 0.8  # the final training loss is the mean over readings after this share of the run
_CAPPED = pl.min_horizontal(pl.col("train_loss").fill_null(math.inf), "start_loss")
Part = tuple[Configuration, Mapping[str, Any]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


# -- Runs -------------------------------------------------------------------------------------------------------------


def tables_of(parts: Sequence[Part]) -> dict[str, pl.DataFrame]:
    """All tables of an `Experiment`."""
    made = run_tables(parts)
    steps = max(choice.steps for choice, _ in parts)
    warnings = warning_tables(made["table"], made["curves"], made["alerts"], steps)
    return made | {"summary": summary_table(made["table"])} | warnings


def run_tables(parts: Sequence[Part]) -> dict[str, pl.DataFrame]:
    """A row for each run and seed, its curves, its accuracies by length, and its alerts."""
    seeds = [(run, part, seed) for run, part in enumerate(parts) for seed in part[1]["seeds"]]
    rows: dict[str, list[Any]] = {"table": [], "curves": [], "lengths": [], "alerts": []}
    for run, (choice, content), seed in seeds:
        number, steps = seed["seed"], content["steps"]
        rows["table"].append({"run": run} | _row(choice, steps, seed))
        read = zip(steps, seed["losses"], *(seed["quantities"][name] for name in QUANTITIES), strict=True)
        rows["curves"] += [(run, number, *values) for values in read]
        rows["lengths"] += [(run, number, int(length), *values) for length, values in seed["lengths"].items()]
        rows["alerts"] += [(run, number, rule, step) for rule, step in seed["alerts"].items()]
    return {name: Experiment.frame(name).of(listed) for name, listed in rows.items()}


def _row(choice: Configuration, steps: Sequence[int], seed: Mapping[str, Any]) -> dict[str, Any]:
    start, losses = seed["start"], seed["losses"]
    curve = list(zip(steps, losses, strict=True))
    last = [loss for step, loss in curve if step > LAST * choice.steps]
    end = None if None in losses or seed["loss"] is None else math.fsum(last) / len(last)
    logits = [x for x in seed["quantities"]["max_logit"] if x is not None]
    return {
        **{name: getattr(choice, name) for name in (*CHOICE, "rate")},
        **{name: seed[name] for name in ("seed", "accuracy", "loss")},
        "train_loss": end,
        "start_loss": start,
        "half_step": next((step for step, loss in curve if loss is not None and loss <= start / 2), None),
        "failed": end is None or end > start / 2,
        "diverged": end is None or end > ROSE * start,
        "largest_logit": max(logits, default=None),
        **{name: seed["quantities"][name][-1] for name in QUANTITIES},
        "temperature_end": seed["temperature"][0],
        "learned": "; ".join(seed["learned"]) or None,
    }


def summary_table(table: pl.DataFrame) -> pl.DataFrame:
    """A row for each choice except for the rate, in the order of the runs."""
    return Experiment.frame("summary").of(map(_summary, table.partition_by(*CHOICE, maintain_order=True)))


def _summary(rows: pl.DataFrame) -> dict[str, Any]:
    best = best_rows(rows)
    accuracy = mean_interval(best["accuracy"], (0.0, 1.0))
    sensitivity = mean_interval(rate_sensitivities(rows).values(), (0.0, math.inf))
    counts = {"runs": len(rows), "failed": rows["failed"].sum(), "diverged": rows["diverged"].sum()}
    means = {"loss": best["loss"].mean(), "half_step": best["half_step"].median()}
    means |= {"accuracy": accuracy.value, "low": accuracy.low, "high": accuracy.high}
    ends = {"best_rate": best["rate"][0], "best_run": best["run"][0], "largest_logit": best["largest_logit"].max()}
    return rows.row(0, named=True) | counts | means | ends | sensitivity.columns("rate_sensitivity")


def best_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """All seeds at the best rate: the lowest training loss on average over seeds; a run that diverged counts with its
    first loss."""
    ends = rows.group_by("run", maintain_order=True).agg(_CAPPED.mean().alias("end")).sort("end", maintain_order=True)
    return rows.filter(pl.col("run") == ends["run"][0])


def rate_sensitivities(rows: pl.DataFrame) -> dict[int, float]:
    """Sensitivity by seed: the mean over rates of min(loss, first loss) minus the best loss (arXiv 2309.14322)."""
    by_seed = rows.group_by("seed", maintain_order=True).agg((_CAPPED.mean() - _CAPPED.min()).alias("x"))
    return dict(by_seed.iter_rows())


def mean_interval(given: Iterable[float], within: tuple[float, float] = (-math.inf, math.inf)) -> Estimate:
    """Mean with Student's interval, clipped to the possible range; no interval from fewer than two values."""
    values = list(given)
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean)
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1) / len(values))
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)) * spread
    return Estimate(mean, max(within[0], mean - half), min(within[1], mean + half))


def resampled_interval(count: int, statistic: Callable[[Any], float], resamples: int) -> tuple[float, float]:
    """Interval of a number computed from runs drawn with replacement; NaN, where there is none, is left out."""
    random = np.random.default_rng(_SEED)
    drawn = np.array([statistic(random.integers(count, size=count)) for _ in range(resamples)])
    if np.isnan(drawn).all():
        return math.nan, math.nan
    low, high = np.nanquantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return low, high


# -- Early warning ----------------------------------------------------------------------------------------------------

SLOW, RESERVE = 0.9, 2.0  # quantile of the healthy runs' half_step, and the factor by which to wait longer
ALLOWED = 0.05  # false alarms at the suggested threshold
_RESAMPLES = 400


@dataclass(frozen=True)
class Signal:
    """A number per step whose large values might warn: a level, or its change since the first step."""

    quantity: str
    direction: str  # "high" or "low"
    kind: str = "level"  # or "change"

    @property
    def sign(self) -> float:
        """Times the number: then large means alarming."""
        return 1.0 if self.direction == "high" else -1.0

    @property
    def score(self) -> pl.Expr:
        """Over the steps of one seed; null where nothing was measured."""
        level = pl.col(self.quantity)
        return self.sign * (level - level.first() if self.kind == "change" else level)


SIGNALS = (
    Signal("entropy_share", "low"),
    Signal("entropy_share", "high"),
    Signal("entropy_share", "high", "change"),
    Signal("separability", "low", "change"),
    Signal("separability", "low"),
    Signal("max_logit", "high"),
    Signal("logit_change", "high"),
    Signal("saturated", "high"),
    Signal("sensitivity", "low"),
    Signal("gradient_ratio", "low"),
    Signal("query_gradient", "low"),
)


_ENDS = pl.col("failed", "evident").first()


def warning_tables(
    table: pl.DataFrame, curves: pl.DataFrame, alerts: pl.DataFrame, steps: int
) -> dict[str, pl.DataFrame]:
    """Each signal at its suggested threshold and each alert of the monitor as it is; each signal at every threshold.

    Both tables are empty if nothing failed, or everything did.
    """
    by_seed = _with_failures(not_too_slow(table), curves, steps).group_by("run", "seed", maintain_order=True)
    ends = by_seed.agg(_ENDS)
    counts = {"failing": ends["failed"].sum(), "healthy": (~ends["failed"]).sum()}
    warnings, roc = [], []
    for signal in SIGNALS if all(counts.values()) else ():
        # The most alarming value before the loss shows the failure.
        most = signal.score.filter(pl.col("step") < pl.col("evident")).max().fill_null(-math.inf)
        scored = by_seed.agg(_ENDS, score=most)
        bad, good = (scored.filter(failed=failed)["score"].to_numpy() for failed in (True, False))
        least = _least_score(bad, good)
        crossed = by_seed.agg(_ENDS, step=pl.col("step").filter(signal.score >= least).first())
        low, high = _auc_interval(scored)
        warnings.append(
            vars(signal)
            | counts
            | {"threshold": signal.sign * least if math.isfinite(least) else None}
            | {"false_alarms": float((good >= least).mean()), "auc": auc(bad, good), "auc_low": low, "auc_high": high}
            | _leads(crossed.filter("failed"))
        )
        scores = np.unique(np.concatenate([bad, good]))[::-1]
        roc += [
            vars(signal)
            | {"threshold": signal.sign * float(score)}
            | {"false_alarms": float((good >= score).mean()), "warned": float((bad >= score).mean())}
            for score in scores[np.isfinite(scores)]
        ]
    for rule in list_rules() if all(counts.values()) else ():
        raised = ends.join(alerts.filter(rule=rule.name), on=("run", "seed"), how="left", maintain_order="left")
        alarms = raised.filter(failed=False)["step"].is_not_null().mean()
        leads = _leads(raised.filter("failed"))
        warnings.append({"quantity": rule.name, "kind": "alert", **counts, "false_alarms": alarms, **leads})
    return {"warnings": Experiment.frame("warnings").of(warnings), "roc": Experiment.frame("roc").of(roc)}


def not_too_slow(table: pl.DataFrame) -> pl.DataFrame:
    """Without rates below the best one of the same choice, and without controls.

    Runs at a smaller rate fail because they are slow, which no quantity has to warn of. A control repeats the run at
    T = 1: counted again, it would make false alarms look rare.
    """
    groups = table.filter(~pl.col("compensated")).partition_by(*CHOICE, maintain_order=True)
    return pl.concat([rows.filter(pl.col("rate") >= best_rows(rows)["rate"][0]) for rows in groups])


def shown_at(table: pl.DataFrame, steps: int) -> float:
    """The last step by which the loss of a failing run shows that it fails."""
    halves = table.filter(~pl.col("failed"))["half_step"].drop_nulls()
    slow = halves.quantile(SLOW, "higher") if len(halves) else None
    return min(float(steps), RESERVE * slow) if slow is not None else float(steps)


def _with_failures(table: pl.DataFrame, curves: pl.DataFrame, steps: int) -> pl.DataFrame:
    """The curves of these runs, with `failed`, and with `evident`: the step at which the loss shows the failure,
    infinite for a healthy run."""
    step, risen = pl.col("step"), pl.col("loss").fill_null(math.inf) > ROSE * pl.col("start_loss")
    rose = step.filter(risen & (step > 1)).first().over("run", "seed").cast(float)
    shown = pl.min_horizontal(pl.lit(shown_at(table, steps)), rose)
    named = table.select("run", "seed", "failed", "start_loss")
    rows = named.join(curves, on=("run", "seed"), how="inner", maintain_order="left_right")
    return rows.with_columns(evident=pl.when("failed").then(shown).otherwise(math.inf))


def _least_score(bad: Floats, good: Floats) -> float:
    """The least score of a failing run that at most `ALLOWED` of the healthy runs reach; infinite if there is none.

    It is moved halfway to the healthy scores below.
    """
    for candidate in np.unique(bad[np.isfinite(bad)]):
        if (good >= candidate).mean() <= ALLOWED:
            below = good[np.isfinite(good) & (good < candidate)]
            return float((candidate + below.max()) / 2 if len(below) else candidate)
    return math.inf


def _leads(failing: pl.DataFrame) -> dict[str, float | None]:
    """Leads, from the steps at which failing runs crossed; only those before the loss shows the failure warn."""
    lead = pl.col("evident") - pl.col("step")
    warned = failing.filter(lead > 0).select(lead.alias("lead"), (lead / pl.col("evident")).alias("share"))
    median, share = np.median(warned, 0).tolist() if len(warned) else (None, None)
    return {"warned": len(warned) / len(failing), "lead": median, "lead_share": share}


def auc(bad: Floats, good: Floats) -> float:
    """How often a failing run has a higher score than a healthy one; ties count half."""
    # By ranks among the healthy: intervals need it thousands of times, and scipy's test would also compute a p value.
    ranked = np.sort(good)
    below, up_to = (np.searchsorted(ranked, bad, side) for side in ("left", "right"))
    return float((below + up_to).mean()) / (2 * len(good))


def _auc_interval(scored: pl.DataFrame) -> tuple[float | None, float | None]:
    """Interval by resampling runs: the seeds of one run are similar, so they stay together."""
    groups = scored.sort("failed", descending=True, maintain_order=True).partition_by("run", maintain_order=True)
    runs = [[rows.filter(failed=failed)["score"].to_list() for failed in (True, False)] for rows in groups]

    def resampled(drawn: Sequence[int]) -> float:
        bad, good = (np.array([x for i in drawn for x in runs[i][side]]) for side in (0, 1))
        return auc(bad, good) if len(bad) and len(good) else math.nan

    low, high = resampled_interval(len(runs), resampled, _RESAMPLES)
    return (None, None) if len(runs) < 3 or math.isnan(low) else (low, high)
