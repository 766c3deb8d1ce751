"""The result of an evaluation: scores of the baseline and of every plan on the same documents, and findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import polars as pl
import torch

from ...measures import enough_windows, resampled_counts
from ...results import Estimate, Result
from ...views import TextTable, View
from ...words.finding import Finding
from ...words.frames import Cell, column, frame
from ...words.manifest import model_name, part_of
from ...words.numbers import interval, many, number, percent
from .._shared.estimates import paired_difference, resampled_estimate, share_right

BETTER, WORSE, EQUAL, UNKNOWN = "better", "worse", "neither", "not judged"
_AGAIN = 1e-9  # relative: a score that is computed again from the values of its documents
_ACCURACIES = ("acc", "acc_norm", "acc_bytes")  # of lm-eval, for tasks with choices
_RULE = (
    "A score counts as better or worse if the interval of the difference on the same documents lies on one side of 0: "
    "exact (McNemar) where a document is right or wrong, else by resampling the documents. Each score is judged alone: "
    "of 20 without any difference about one would count. A task counts by acc_norm if it has it, else by its first "
    "score."
)


def _signed(change: float) -> str:
    return f"{change:+.3f}" if abs(change) < 10 else number(change, 4, signed=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation(Result, study="eval", json_file="evaluation.json", drawn=True):
    """The result of `evaluate`.

    Attributes:
        table: a row for each plan, task and score.
        findings: on how many tasks each plan is worse or better, and what the tasks cannot show.
        manifest: as of every study; `harness` has the version of lm-eval and its tasks.
    """

    files: ClassVar[Mapping[str, str]] = {
        "parts/": "scores and values of all documents by contender and task: what an interrupted run resumes from"
    }
    table: pl.DataFrame = frame(
        "a plan, task and score",
        column("plan", str, "as it was given"),
        column("task", str, "of lm-eval"),
        column("metric", str, "of the task, with its filter if it has several"),
        column("counts", bool, "whether the findings count it: one score of each task"),
        column("documents", int, "how many", label="n"),
        column("chance", float, "score of guessing; null where there are no choices", show=partial(number, digits=3)),
        column("baseline", float, "score of the model as it stands"),
        column("score", float, "score under the plan", label="plan"),
        column("difference", float, "plan minus baseline, on the same documents",
               interval=True, signed=True, show=_signed),
        column("higher_is_better", bool, "null if the task does not say"),
        column("verdict", str, f"{BETTER} or {WORSE} beyond chance, {EQUAL} of both, or {UNKNOWN}"),
    )  # fmt: skip
    findings: tuple[Finding, ...] = field(repr=False)
    manifest: Mapping[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        return f"Evaluation({model_name(self.manifest)}: {' '.join(each.sentence for each in self.findings[:1])})"

    @property
    def plans(self) -> list[str]:
        """Names of the plans, in order."""
        return self.table["plan"].unique(maintain_order=True).to_list()

    def view(self) -> View:
        harness, settings = part_of(self.manifest, "harness"), part_of(self.manifest, "settings")
        tasks, documents = (
            part_of(harness, "tasks"),
            [facts["documents"] for facts in part_of(harness, "tasks").values()],
        )
        note = (
            f"In brackets: intervals of nominal {percent(settings.get('level', 0.95), 4)}, paired by document. "
            "chance: guessing among the choices."
        )
        does = f"do {len(self.plans)} plans" if len(self.plans) > 1 else f"does {self.plans[0]}"
        return self._view(
            f"What {does} change in {model_name(self.manifest)}, by its answers?",
            f"{many(len(tasks), 'task')} of lm-eval {harness.get('lm_eval', '')}, {many(sum(documents), 'document')}; "
            "every contender answers the same requests",
            tables=[
                table for plan in self.plans for table in self._of_plan(plan, note if plan == self.plans[-1] else "")
            ],
        )

    def _of_plan(self, plan: str, note: str) -> list[TextTable]:
        """For the terminal without chance, in two lines per score."""
        of_plan = partial(self._shown, plan, rows=self.table.filter(pl.col("plan") == plan), note=note)
        columns = ("documents", "baseline", "score", "difference", "verdict")
        both: Cell = ("task, score", lambda row: f"{row['task']} {row['metric']}")
        short = of_plan(both, *columns, on=("terminal",), breaks=("(",), whole=("difference",))
        return [short, of_plan("task", "metric", "chance", *columns, on=("page", "card"))]


# -- Differences ------------------------------------------------------------------------------------------------------


def rows_of(plan: str, task: Any, baseline: Mapping[str, Any], other: Mapping[str, Any], settings: Any) -> (
    list[dict[str, Any]]
):  # fmt: skip
    """A row for every score of a task that both contenders have."""
    keys = [key for key in baseline["scores"] if key in other["scores"]]
    accuracy = next((key for key in keys if key.startswith("acc_norm,")), keys[0])
    return [
        {"plan": plan, "task": task.name, "metric": _named(key), "counts": key == accuracy,
         "documents": len(baseline["values"][key]), "baseline": baseline["scores"][key], "score": other["scores"][key],
         "chance": task.chance if key.partition(",")[0] in _ACCURACIES else None,
         "higher_is_better": (higher := task.higher_is_better(key)),
         **(change := _difference(task.aggregate(key), key, baseline, other, settings)).columns("difference"),
         "verdict": _verdict(change, higher, len(baseline["values"][key]), settings.level)}
        for key in keys
    ]  # fmt: skip


def _named(key: str) -> str:
    metric, _, name = key.partition(",")
    return metric if name == "none" else f"{metric} ({name})"


def _difference(
    aggregate: Callable[[Sequence[Any]], float], key: str, baseline: Mapping[str, Any], other: Mapping[str, Any],
    settings: Any,
) -> Estimate:  # fmt: skip
    """Plan minus baseline; without an interval if scores cannot be computed from resampled documents."""
    first, second = baseline["values"][key], other["values"][key]
    scores = [baseline["scores"][key], other["scores"][key]]
    if any(not isinstance(score, int | float) for score in scores):
        return Estimate(math.nan)
    if all(value in (0, 1) for value in (*first, *second)):
        return paired_difference([bool(x) for x in first], [bool(x) for x in second], settings.level)
    gap = Estimate(scores[1] - scores[0])
    if any(isinstance(part, str) for value in first for part in (value if isinstance(value, list) else [value])):
        return gap  # of texts: scores such as BLEU take too long to resample
    try:
        again = [aggregate(values) for values in (first, second)]
        if not all(math.isclose(*pair, rel_tol=_AGAIN) for pair in zip(again, scores, strict=True)):
            return gap
        drawn = []
        for counts in resampled_counts(len(first), settings.resamples, settings.seed):
            chosen = torch.arange(len(first)).repeat_interleave(counts.long()).tolist()
            drawn.append(aggregate([second[i] for i in chosen]) - aggregate([first[i] for i in chosen]))
    except (TypeError, ValueError, ArithmeticError):
        return gap
    value = torch.tensor(gap.value, dtype=torch.float64)
    return resampled_estimate(value, torch.tensor(drawn, dtype=torch.float64), len(first), settings.level)


def _verdict(change: Estimate, higher: bool | None, documents: int, level: float) -> str:
    if higher is None or change.low is None or documents < enough_windows(level):
        return UNKNOWN
    up, down = (BETTER, WORSE) if higher else (WORSE, BETTER)
    return up if change.above(0) else down if change.below(0) else EQUAL


# -- Findings ---------------------------------------------------------------------------------------------------------


def findings_of(table: pl.DataFrame, level: float) -> tuple[Finding, ...]:
    """A sentence per plan; then the tasks that the model itself cannot do."""
    counted = table.filter("counts")
    plans = counted.partition_by("plan", maintain_order=True)
    return (*(_of_plan(rows.to_dicts(), level) for rows in plans), *_at_chance(plans[0].to_dicts(), level))


def _of_plan(rows: Sequence[Mapping[str, Any]], level: float) -> Finding:
    plan, total = rows[0]["plan"], len(rows)
    by_verdict = {name: [row for row in rows if row["verdict"] == name] for name in (WORSE, BETTER, EQUAL, UNKNOWN)}
    worse, better, unknown = (by_verdict[name] for name in (WORSE, BETTER, UNKNOWN))
    judged = total - len(unknown)
    if not judged:
        words = f"{plan} cannot be judged: a task needs {enough_windows(level)} documents and a score with an interval"
    elif worse:
        words = f"{plan} is worse on {len(worse)} of {many(judged, 'task')}, most on {_moved(max(worse, key=_harm))}"
    else:
        nearest = max(rows, key=lambda row: _harm(row, at_most=True) if row not in unknown else -math.inf)
        at_most = f"at most {number(_harm(nearest, at_most=True, relative=False), 2)} worse on {_score(nearest)}"
        words = (
            f"{plan} is no worse beyond chance on {judged} of {many(judged, 'task')}: by the intervals it is {at_most}"
        )
    if better:
        words += f"; better on {len(better)}: {_moved(max(better, key=lambda row: -_harm(row)))}"
    if judged and unknown:
        words += f"; not judged: {', '.join(row['task'] for row in unknown)}"
    facts = {f"{row['task']} {row['metric']}": row["difference"] for row in rows}
    return Finding("plan", f"{words}.", _RULE, facts)


def _harm(row: Mapping[str, Any], *, at_most: bool = False, relative: bool = True) -> float:
    """How much worse the score is, or may be by its interval, as a share of the baseline's."""
    sign = -1 if row["higher_is_better"] else 1
    end = row["difference_low" if row["higher_is_better"] else "difference_high"] if at_most else row["difference"]
    harm: float = sign * (row["difference"] if end is None else end)
    return float((max(harm, 0.0) if at_most else harm) / (abs(row["baseline"]) or 1.0 if relative else 1.0))


def _score(row: Mapping[str, Any]) -> str:
    return f"{row['task']} ({row['metric']} {number(row['baseline'], 3)})"


def _moved(row: Mapping[str, Any]) -> str:
    ends = interval(row["difference_low"], row["difference_high"], _signed)
    return (
        f"{row['task']}, {row['metric']} {number(row['baseline'], 3)} to {number(row['score'], 3)} "
        f"({_signed(row['difference'])}, {ends})"
    )


def _at_chance(rows: Sequence[Mapping[str, Any]], level: float) -> list[Finding]:
    """Tasks on which the model itself may be guessing, so that no plan could make it worse."""
    guessing = []
    for row in rows:
        if row["chance"] is not None and row["baseline"] is not None:
            right = share_right(round(row["baseline"] * row["documents"]), row["documents"], level)
            if right.low is not None and right.low <= row["chance"]:
                guessing.append(row)
    if not guessing:
        return []
    named = [f"{x['task']} ({number(x['baseline'], 3)}, chance {number(x['chance'], 3)})" for x in guessing]
    words = f"On {len(guessing)} of {many(len(rows), 'task')} the model itself is not above guessing, so a plan has "
    words += f"nothing to lose there: {', '.join(named)}."
    rule = "Wilson's interval of the baseline's accuracy begins below the accuracy of guessing among the choices."
    return [Finding("chance", words, rule, {row["task"]: row["baseline"] for row in guessing})]
