"""An experiment run: its runs side by side in one resumable folder, then tables, judgements and a result.

Each run is stored as soon as it is finished, so that a stopped experiment resumes.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from .._arguments import whole
from .._errors import AbbeError
from ..models import DeviceLike, Text, as_device
from ..runs.executors import Local, current
from ..runs.inputs import FolderLike, as_folder
from ..runs.measuring import finished_manifest, study_facts
from ..runs.parts import Parts, claim_folder
from ..runs.watch import Watch, watching
from ..training import list_rules
from ..words.finding import Finding
from ..words.numbers import about, many
from .result import Experiment
from .run import CPU, Configuration, train
from .tables import LEVEL, Part, tables_of
from .tasks import Task, make_task

_TIMED, _TESTED = 12, 8  # steps and test sequences of the short runs that are timed before the first real one
_PER_READING = 6  # time of a reading, in steps
_POLL = 0.2  # seconds; a wait without an end would not hear Ctrl-C everywhere
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
Keep = Callable[[Configuration, dict[str, Any]], None]
Judge = Callable[[Experiment], Iterable[Finding]]


def run_experiment(
    name: str, task: Task, choices: Sequence[Configuration], given: Mapping[str, Any], judge: Judge,
    device: DeviceLike | None, folder: FolderLike | None, workers: int | None, progress: bool,
) -> Experiment:  # fmt: skip
    """Train all unfinished runs, side by side, and make the result; with a folder it is saved there.

    `given` are settings for the manifest.
    """
    started, target = time.perf_counter(), as_folder(folder)
    place = CPU if device is None else as_device(device)
    crew = usual_workers(place) if workers is None else whole("workers", workers, least=1)
    # Alerts are checked during training: with another rule or threshold it is another run.
    rules = {rule.name: rule.fires for rule in list_rules()}
    settings = {"experiment": name, **given, "level": LEVEL, "rules": rules}
    with watching(progress) as watch:
        facts = {"task": task.facts()}
        parts = claim_folder(target, Experiment.study, facts, settings, watch.announce, device=place.type)
        finished = _train(task, choices, parts, crew, watch, place)
        manifest = study_facts(Experiment.study, settings) | {
            "model": {"name": "small transformers", "parameters": None, "device": str(place)},
            "text": {"name": task.meaning} | task.facts(),
            "self_check": {"error": None, "why": "nothing of a given model is read"},
            "skipped": [],
        }
        training = sum(content["seconds"] for _, content in finished)
        seconds = {"total": time.perf_counter() - started, "training": training}
        manifest = finished_manifest(manifest, parts, seconds)
        made = Experiment(**tables_of(finished), findings=(), manifest=manifest)
        return replace(made, findings=tuple(judge(made)))


def _train(
    task: Task, choices: Sequence[Configuration], parts: Parts, workers: int, watch: Watch, device: torch.device
) -> list[Part]:
    stored = {choice.key: parts.json(choice.key) for choice in choices}
    finished = {key: content for key, content in stored.items() if content is not None}
    left = [choice for choice in choices if choice.key not in finished]

    def keep(choice: Configuration, content: dict[str, Any]) -> None:
        parts.keep_json(choice.key, content)
        finished[choice.key] = content
        watch.step(choice.label)

    if left:
        each = _estimate(task, left, device)
        at_once = min(workers, len(left))
        seconds = sum(each[choice.normalizer] for choice in left) / at_once
        left.sort(key=lambda choice: -each[choice.normalizer])  # the slowest first: no core waits for one at the end
        runs, seeds = many(len(left), "run"), many(len(choices[0].seeds), "seed")
        watch.say(f"{runs} of {seeds} on {task.meaning}, {at_once} at a time: about {about(seconds)}")
    else:
        watch.say("all runs were trained before")
    watch.expect(len(left))
    if isinstance(current(), Local):
        train_all(task, left, workers, keep, device)
    else:  # shards and actors train one run at a time
        by_key = {choice.key: choice for choice in choices}

        def make(key: str) -> None:
            with one_thread():
                parts.keep_json(key, train(task, by_key[key], device=device))

        parts.each(by_key, make, watch.step)
        finished = {key: parts.json(key) or {} for key in by_key}
    return [(choice, finished[choice.key]) for choice in choices]


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


# -- Side by side -----------------------------------------------------------------------------------------------------


def train_all(
    task: Task, choices: Sequence[Configuration], workers: int, keep: Keep, device: torch.device = CPU
) -> None:
    """Train all; `keep` is called by this thread for each run that finishes, in any order."""
    if workers == 1 or len(choices) == 1:
        with one_thread():
            for choice in choices:
                keep(choice, train(task, choice, device=device))
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process that has used torch's threads may hang
    stop = context.RawValue("b", 0)  # no event: a worker that is killed while it looks would keep its lock
    sizes = {name: value for name, value in task.facts().items() if name not in ("task", "text")}
    given = (stop, os.getpid(), task.name, sizes, getattr(task, "text", None), str(device))
    with ProcessPoolExecutor(min(workers, len(choices)), context, _start_worker, given) as pool:
        try:
            with _clean_start():
                running = {pool.submit(_train_in_worker, choice): choice for choice in choices}
            # The pool lists the workers to watch whenever it is woken, and `submit` wakes it before it starts one: an
            # empty call makes it see the last worker, whose death would go unnoticed until another run ends.
            pool.submit(int)
            while running:
                for future in wait(running, timeout=_POLL, return_when=FIRST_COMPLETED).done:
                    keep(running.pop(future), future.result())
        except BrokenProcessPool:  # the pool ends the others
            raise AbbeError(
                "a worker ended while it trained (out of memory?): run again to resume, with --workers 1 to see why"
            ) from None
        except BaseException:
            stop.value = 1  # workers end at their next step
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _clean_start() -> Iterator[None]:
    """Processes that start here have one thread, leave Ctrl-C to the caller, and do not run its program again.

    Children inherit environment and ignored signals. multiprocessing would import the caller's `__main__` in each, and
    so train again from a script without `if __name__ == "__main__"`; an empty module in its place has no file to run.
    """
    main, before = sys.modules["__main__"], {name: os.environ.get(name) for name in _ONE_THREAD}
    in_main_thread = threading.current_thread() is threading.main_thread()  # others may not set signals
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main_thread else None
    sys.modules["__main__"] = types.ModuleType("__main__")
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if in_main_thread:
            signal.signal(signal.SIGINT, handler)


_train_here: Callable[[Configuration], dict[str, Any]]  # set in a worker


def _start_worker(stop: Any, caller: int, name: str, sizes: Mapping[str, Any], text: Text | None, device: str) -> None:
    """Make the task, once per worker."""
    global _train_here
    torch.set_num_threads(1)

    def alive() -> None:
        """End the process if it was stopped or its caller is gone."""
        if stop.value or os.getppid() != caller:
            os._exit(1)

    _train_here = partial(train, make_task(name, sizes, text), alive=alive, device=torch.device(device))


def _train_in_worker(choice: Configuration) -> dict[str, Any]:
    try:
        return _train_here(choice)
    except AbbeError:
        raise
    except Exception as error:
        raise RuntimeError(f"{choice.label}: {type(error).__name__}: {error}") from None


def usual_workers(device: torch.device = CPU) -> int:
    """One per core that this process may use; a single one on an accelerator."""
    if device.type != CPU.type:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """As in a worker: with another number of threads, sums round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
