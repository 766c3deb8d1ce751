"""An experiment: many runs of one task in one resumable folder, then tables, judgements and a result."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ... import normalizers
from ..._arguments import whole
from ..._errors import AbbeError
from ..._lazy import has
from ..._locks import held
from ...models import DeviceLike, as_device
from ...training import list_rules
from ...words.finding import Finding
from ...words.numbers import about, many
from .._engine.folder import claim_without_model
from .._engine.inputs import FolderLike, as_folder
from .._engine.measuring import finished_manifest, study_facts
from .._engine.parts import JSON, Parts
from .._engine.sharing.board import Unit, refuse_all_failed
from .._engine.sharing.crew import is_shared, leave_to_merge, share, unit_in
from .._engine.watch import Watch, watching
from .configuration import Configuration
from .early_warning import roc_table, warning_table
from .result import Experiment
from .run import CPU, train
from .side_by_side import one_thread, train_all, usual_workers
from .tables import Part, Tables, alert_table, curve_table, length_table, run_table, summary_table
from .tasks import Task

LEVEL = 0.95
_TIMED, _TESTED = 12, 8  # steps and test sequences of the short runs that are timed before the first real one
_PER_READING = 6  # time of a reading, in steps


@dataclass(frozen=True)
class Plan:
    """What is trained and how it is judged. `settings` are those for the manifest."""

    experiment: str
    task: Task
    choices: Sequence[Configuration]
    settings: Mapping[str, Any]
    judge: Callable[[Tables, float], tuple[Finding, ...]]
    skipped: Sequence[str] = ()
    device: torch.device = CPU


def run_experiment(
    plan: Plan, device: DeviceLike | None, folder: FolderLike | None, workers: int | None, progress: bool
) -> Experiment:
    """Train all unfinished runs, side by side, and make the result; with a folder it is saved there."""
    started, place = time.perf_counter(), as_folder(folder)
    plan = replace(plan, device=CPU if device is None else as_device(device))
    crew = usual_workers(plan.device) if workers is None else whole("workers", workers, least=1)
    # Alerts are checked during training: with another rule or threshold it is another run.
    rules = {rule.name: rule.fires for rule in list_rules()}
    settings = {"experiment": plan.experiment, **plan.settings, "level": LEVEL, "rules": rules}
    with held(place), watching(progress) as watch:
        parts = claim_without_model(
            place, Experiment.study, {"task": plan.task.facts()}, settings, watch.announce, device=plan.device.type
        )
        plan = _share(plan, parts, watch)
        leave_to_merge()
        finished = _train(plan, parts, crew, watch)
        tables = _tables(finished)
        manifest = study_facts(Experiment.study, settings) | {
            "model": {"name": "small transformers", "parameters": None, "device": str(plan.device)},
            "text": {"name": plan.task.meaning} | plan.task.facts(),
            "self_check": {"error": None, "why": "nothing of a given model is read"},
            "skipped": list(plan.skipped),
        }
        training = sum(content["seconds"] for _, content in finished)
        seconds = {"total": time.perf_counter() - started, "training": training}
        result = Experiment(
            **vars(tables), findings=plan.judge(tables, LEVEL), manifest=finished_manifest(manifest, parts, seconds)
        )
        if place is not None:
            result.save(place)
            if has("report"):
                result.to_html(place / result.page)
    return result


def _share(plan: Plan, parts: Parts, watch: Watch) -> Plan:
    """In a shared folder workers train one run at a time. Returns the plan without the runs that failed."""
    folder = parts.folder
    if folder is None or not is_shared():
        return plan
    choices = {unit_in(folder, one.key, [folder / f"{one.key}{JSON}"]): one for one in plan.choices}
    by_name = {unit.name: choice for unit, choice in choices.items()}

    def make(unit: Unit) -> None:
        with one_thread():
            parts.keep_json(by_name[unit.name].key, train(plan.task, by_name[unit.name], device=plan.device))

    failed = share(list(choices), make, watch, needed=False)
    left = [choice for unit, choice in choices.items() if unit.name not in failed]
    if failed and not left:
        refuse_all_failed(list(failed.values()), "runs")
    why = [f"{by_name[name].label}: {failure}" for name, failure in failed.items()]
    return replace(plan, choices=left, skipped=[*plan.skipped, *why])


def _train(plan: Plan, parts: Parts, workers: int, watch: Watch) -> list[Part]:
    stored = {choice.key: parts.json(choice.key) for choice in plan.choices}
    finished = {key: content for key, content in stored.items() if content is not None}
    left = [choice for choice in plan.choices if choice.key not in finished]

    def keep(choice: Configuration, content: dict[str, Any]) -> None:
        parts.keep_json(choice.key, content)
        finished[choice.key] = content
        watch.step(choice.label)

    if left:
        each = _estimate(plan.task, left, plan.device)
        at_once = min(workers, len(left))
        seconds = sum(each[choice.normalizer] for choice in left) / at_once
        left.sort(key=lambda choice: -each[choice.normalizer])  # the slowest first: no core waits for one at the end
        runs, seeds = many(len(left), "run"), many(len(plan.choices[0].seeds), "seed")
        watch.say(f"{runs} of {seeds} on {plan.task.meaning}, {at_once} at a time: about {about(seconds)}")
    else:
        watch.say("all runs were trained before")
    watch.expect(len(left))
    train_all(plan.task, left, workers, keep, plan.device)
    return [(choice, finished[choice.key]) for choice in plan.choices]


def _estimate(task: Task, left: Sequence[Configuration], device: torch.device) -> dict[str, float]:
    """Seconds per run on one core, by normalizer: scaled from a few steps and a short test."""
    without_lengths = copy.copy(task)
    without_lengths.test_lengths = ()
    each = {}
    with one_thread():
        for choice in {choice.normalizer: choice for choice in left}.values():
            one = replace(choice, steps=1, readings=1, test_size=_TESTED)
            train(without_lengths, one, device=device)  # loads kernels
            base = train(without_lengths, one, device=device)["seconds"]
            step = (train(without_lengths, replace(one, steps=1 + _TIMED), device=device)["seconds"] - base) / _TIMED
            tests = train(task, one, device=device)["seconds"] - base if task.test_lengths else 0.0
            steps = choice.steps + _PER_READING * min(choice.readings, choice.steps)
            each[choice.normalizer] = max(0.0, step) * steps + max(0.0, tests) * choice.test_size / _TESTED
    return each


def _tables(parts: Sequence[Part]) -> Tables:
    table, curves, alerts = run_table(parts), curve_table(parts), alert_table(parts)
    steps = max(choice.steps for choice, _ in parts)
    warnings, roc = warning_table(table, curves, alerts, steps), roc_table(table, curves, steps)
    return Tables(table, curves, length_table(parts), alerts, summary_table(table, LEVEL), warnings, roc)


def seeds_from(seeds: int, seed: int) -> tuple[int, ...]:
    count, first = whole("seeds", seeds, least=1, most=1000), whole("seed", seed, least=0, most=2**31)
    return tuple(range(first, first + count))


def checked_normalizers(given: str | Sequence[str], task: Task) -> tuple[str, ...]:
    """Specs of normalizers, checked; some need a task whose keys are in causal order."""
    specs = (given,) if isinstance(given, str) else tuple(given)
    if not specs:
        raise AbbeError("there is no normalizer to train: name at least one, such as softmax")
    for spec in specs:
        parts = normalizers.normalizer(spec).modules()  # a hybrid has others inside
        if any(getattr(part, "needs_order", False) for part in parts) and not task.ordered:
            raise AbbeError(f"{spec} needs keys in causal order, which {task.name} does not have: leave it out")
    if len(set(specs)) < len(specs):
        raise AbbeError(f"a normalizer is named twice: {', '.join(specs)}")
    return specs
