"""eval: what the tasks of lm-evaluation-harness say about a model, as it stands and under plans.

Every contender answers the same requests, document by document; a contender on a task is a part of the run.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any

from ..._arguments import between, shown, whole
from ..._errors import AbbeError
from ..._files import file_sha256
from ..._lazy import need
from ...models import FILE_PREFIX, DeviceLike, DeviceMap, DtypeLike, Text, as_swapped, plan, plan_path, rules_in, swap
from ...normalizers import normalizer
from ...runs.cost import CHECKED
from ...runs.inputs import (
    MOST_RESAMPLES,
    FolderLike,
    ModelLike,
    Placed,
    checked_seed,
    plain_settings,
    windows_for,
)  # fmt: skip
from ...runs.loss import check_causal, window_losses
from ...runs.measuring import Job, at_work
from ...runs.study import study
from ...runs.watch import Stages
from ...words.manifest import without_folder
from ...words.names import BASELINE
from ...words.numbers import about, many
from .._shared.swapped import best_seconds
from .result import Evaluation, findings_of, rows_of

PlanLike = str | os.PathLike[str] | Mapping[str, str]
_TRIES = 2  # the best counts: the first one warms up
_TOKEN = 32  # characters: as many per token of the self-check are read


@study(Evaluation, command="eval", page="yes")
def evaluate(
    model: ModelLike = "embedded", *, plans: PlanLike | Sequence[PlanLike] | None = None,
    tasks: str | Sequence[str] | None = None, limit: int | None = None, num_fewshot: int | None = None,
    batch_size: int = 8, seed: int = 0, level: float = 0.95, resamples: int = 1000,
    folder: FolderLike | None = None, tokenizer: Any = None, device: DeviceLike | None = None,
    dtype: DtypeLike | None = None, device_map: DeviceMap | None = None, progress: bool = True,
) -> Evaluation:  # fmt: skip
    """What a plan costs on tasks of lm-evaluation-harness: the same requests for the model as it stands and under it.

    Needs the extra eval. Nothing is fetched, unless a task is named whose data are on the hub.

    Args:
        model: as for `diagnose`; it must predict the next token.
        plans: a spec, patterns with their specs ("layers.3=topp:p=0.9; ..."), a file that lift, calibrate or Swap.save
            wrote, or the folder of such a run; several are compared with the same baseline.
        tasks: of lm-eval by name or pattern, a folder with their YAML files, or such a file; several with commas.
        limit: use the first documents of each task, this many; by default all.
        num_fewshot: examples in front of every question; by default as the task says, and 0 where it says nothing.
        batch_size: requests per pass.
        seed: random seed of the examples, of generation and of the intervals.
        level: of the intervals, in (0, 1).
        resamples: number of bootstrap resamples, >= 1.
        folder: keep the answers there; an interrupted evaluation is resumed.
        tokenizer, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        A row for each plan, task and score with its difference from the baseline, and whether that is beyond chance. A
        high accuracy and a low perplexity are good.

    Raises:
        AbbeError: an argument is wrong, there is no such task or its data are not here, the plan is for another model,
            or lm-eval is not installed; one line says what to do.

    Commands:
        abbe eval smollm2 --plan entmax:alpha=1.5 --tasks ./my-tasks --limit 200
        abbe eval smollm2 --plan abbe-lift-smollm2 --plan 'layers.4-14=topp:p=0.9' --tasks hellaswag,arc_easy

    Examples:
        >>> abbe.evaluate("embedded", plans="entmx:alpha=1.5", tasks="hellaswag")
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: ...entmx...
    """
    contenders = (_Contender(BASELINE, None), *as_contenders(plans))
    names, settings = _task_names(tasks), EvalSettings(
        None if limit is None else whole("limit", limit, least=1),
        None if num_fewshot is None else whole("num_fewshot", num_fewshot, least=0),
        whole("batch_size", batch_size, least=1), checked_seed(seed), between("level", level, 0, 1, 0.95),
        whole("resamples", resamples, least=1, most=MOST_RESAMPLES),
    )  # fmt: skip
    need("abbe eval", "eval")
    harness: Any = import_module(".harness", __package__)  # needs lm-eval
    loaded = harness.load_tasks(names, settings.limit, settings.num_fewshot, settings.seed)
    # The requests are the text of this study: their fingerprint is part of the run's identity.
    text = Text(", ".join(task.name for task in loaded), "\n".join(task.text for task in loaded))
    with at_work(Evaluation, model, text, folder, tokenizer, progress, Placed(device, dtype, device_map)) as job:
        check_causal(job.model, "an evaluation")
        return _Evaluating(job, harness, loaded, contenders, settings).run()


@dataclass(frozen=True)
class EvalSettings:
    limit: int | None
    num_fewshot: int | None
    batch_size: int
    seed: int
    level: float
    resamples: int


@dataclass(frozen=True)
class _Contender:
    """A name for tables, and what is swapped; None for the baseline."""

    name: str
    what: Any
    digest: str = ""  # of a file: an evaluation must not resume with another plan of the same name


def as_contenders(plans: object) -> list[_Contender]:
    """A single plan needs no list; patterns and files are checked against the model later."""
    if plans is None or isinstance(plans, str | os.PathLike | Mapping) or not isinstance(plans, Iterable):
        plans = [plans]
    contenders = [_contender(one) for one in plans]
    names = [one.name for one in contenders]
    if not names or (twice := next((name for name in names if names.count(name) > 1), None)):
        raise AbbeError(f"plan {twice} is given twice: name each once" if names else "there is no plan: name one")
    return contenders


def _contender(given: Any) -> _Contender:
    specs = [*given.values()] if isinstance(given, Mapping) else [given]
    if not specs or not all(isinstance(one, str | os.PathLike) for one in specs):
        raise AbbeError(
            f"plan is {shown(given)}, but must be a spec, patterns with specs, a file or the folder of a run"
        )
    if isinstance(given, Mapping):
        given = "; ".join(f"{pattern}={spec}" for pattern, spec in given.items())
    if (path := plan_path(given)) is not None:
        try:
            digest = file_sha256(path)
        except OSError as error:
            raise AbbeError(f"{path} cannot be read: {error.strerror}") from None
        return _Contender(without_folder(os.fspath(given).removeprefix(FILE_PREFIX)), as_swapped(given), digest)
    rules = rules_in(os.fspath(given))
    for spec in rules.values() if isinstance(rules, Mapping) else [rules]:
        normalizer(spec)  # a mistake is reported before a model is loaded
    return _Contender(os.fspath(given), rules)


def _task_names(tasks: object) -> list[str]:
    named = [tasks] if isinstance(tasks, str | os.PathLike) else tasks
    if isinstance(named, Sequence) and named and all(isinstance(x, str | os.PathLike) and str(x) for x in named):
        return [os.fspath(one) for one in named]
    raise AbbeError(f"tasks is {shown(tasks)}, but must be names of lm-eval's tasks, or a folder with YAML files")


class _Evaluating:
    def __init__(
        self, job: Job, harness: Any, tasks: Sequence[Any], contenders: Sequence[_Contender], settings: EvalSettings
    ) -> None:
        self.job, self.harness, self.contenders, self.settings = job, harness, contenders, settings
        for contender in contenders[1:]:
            plan(job.model, contender.what)  # each must fit this model
        self.tasks = {
            f"parts/{place}-{number}": (contender, task)  # numbers, since a name may not be one of a file
            for number, task in enumerate(tasks)
            for place, contender in enumerate(contenders)
        }
        facts = {task.name: task.facts for task in tasks}
        named: dict[str, Any] = {
            "plans": [one.name for one in contenders[1:]], "files": [one.digest for one in contenders[1:]],
            "tasks": {name: one["digest"] for name, one in facts.items()}, "lm_eval": harness.VERSION,
        }  # fmt: skip
        job.describe(plain_settings(settings) | named)
        job.facts["harness"] = {"lm_eval": harness.VERSION, "tasks": facts}
        self.listed = tasks

    def run(self) -> Evaluation:
        job, parts, batch = self.job, self.tasks, self.settings.batch_size
        self._check()
        job.claim()
        self.stages = Stages(job.watch, {part: math.ceil(len(x.requests) / batch) for part, (_, x) in parts.items()})
        job.parts.each(parts, self._part, self.stages.end)
        made = {(one.name, task.name): self._part(part) for part, (one, task) in parts.items()}
        rows = [
            row
            for one in self.contenders[1:]
            for task in self.listed
            for row in rows_of(one.name, task, made[BASELINE, task.name], made[one.name, task.name], self.settings)
        ]
        table = Evaluation.frame().of(rows)
        cut = {task.name: made[BASELINE, task.name]["truncated"] for task in self.listed}
        skipped = [
            f"{task.name}: {cut[task.name]:,} of {many(len(task.requests), 'request')} longer than the context of "
            f"{job.model.context:,} tokens, cut from the left by lm-eval"
            for task in self.listed
            if cut[task.name]
        ]
        manifest = job.manifest({"skipped": skipped})
        return Evaluation(table=table, findings=findings_of(table, self.settings.level), manifest=manifest)

    def _check(self) -> None:
        """Check that softmax swapped in reproduces the model; announce the cost."""
        job, model, content = self.job, self.job.model, self.job.text.content
        sample = Text(job.text.name, content[: CHECKED * _TOKEN])
        length = min(CHECKED, job.room(CHECKED) or CHECKED)
        windows = windows_for(model, sample, (length,), 1, self.settings.seed)
        with swap(model, "softmax") as trial:
            job.check(trial, windows)
        seconds = best_seconds(partial(window_losses, model, windows), _TRIES, time.perf_counter)
        # As many times what was read as the requests are longer: lm-eval reads them again for every choice.
        times = len(self.contenders) * len(content) / (windows[0].end - windows[0].start)
        documents, requests = sum(task.documents for task in self.listed), sum(len(x.requests) for x in self.listed)
        job.watch.say(
            f"{len(self.contenders)} contenders, {many(len(self.listed), 'task')}, {documents:,} documents, "
            f"{requests:,} requests, {times * windows[0].length:,.0f} tokens to read: about {about(times * seconds)}"
        )

    def _part(self, part: str) -> dict[str, Any]:
        """Answers of a contender on a task: of an earlier call, or given now."""
        contender, task = self.tasks[part]
        self._stage = part, f"{contender.name}: {task.name}"

        def answers() -> dict[str, Any]:
            with nullcontext() if contender.what is None else swap(self.job.model, contender.what):
                answered: dict[str, Any] = task.answered(self._harness_model)
                return answered

        return self.job.parts.get_or_make(part, answers)

    @cached_property
    def _harness_model(self) -> Any:
        return self.harness.AbbeLM(
            self.job.model, batch_size=self.settings.batch_size, on_batch=lambda: self.stages.step(*self._stage)
        )
