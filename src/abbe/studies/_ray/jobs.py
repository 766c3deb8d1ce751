"""Jobs, each the run folder of one study, and actors that work on them until all are merged.

What is special: Ray does not hand out parts. An actor is a worker like any other (`abbe.work`): it claims the parts
of the folder one after the other, so an answer that is lost, or an actor that is killed, loses at most one part's time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._errors import AbbeError
from ..._workers import expires_after
from ...words.numbers import many
from .._engine.sharing.board import one_line
from .._engine.watch import Watch
from .._work import progress
from .cluster import first_line

RESTARTS = 3  # of an actor that died
_SPELL = 0.5  # seconds between two looks at the folders
_PATIENCE = 60.0  # seconds without an actor after which a line says so
_SLACK = 10.0  # seconds beyond the time after which marks expire
_SHARED = "is shared by"  # what the merging says while others seem to be at work


@dataclass
class Job:
    """A study in a folder. `error` says in one line why it came to no result."""

    study: str
    arguments: Mapping[str, Any]
    folder: Path
    error: str = ""
    merged: bool = False
    worked_out: bool = False  # an actor found nothing more to make: only the merging remains
    workers: set[int] = field(default_factory=set)  # actors that have a call of it
    refused: dict[int, str] = field(default_factory=dict)  # what actors could not do it for

    @property
    def is_over(self) -> bool:
        return self.merged or bool(self.error)

    @property
    def waits_for_merge(self) -> bool:
        return self.worked_out and not self.workers and not self.is_over

    def parts(self) -> tuple[int, int]:
        """How many are there, of how many that are known."""
        if not self.folder.is_dir():
            return 0, 0
        now = progress(self.folder)
        return now.there, now.total


class Actor:
    """In a process of its own, which Ray starts: one model at a time, on so many threads."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)

    def greet(self) -> None:
        """Answered as soon as the actor runs."""

    def work(self, study: str, arguments: Mapping[str, Any], folder: str) -> None:
        """Make parts until none is left."""
        from abbe.studies import work

        done = work(study, **arguments, folder=folder, progress=False)
        if done.stopped:  # something is wrong with this machine: others go on
            raise AbbeError(done.stopped)

    def merge(self, folder: str, patience: float) -> None:
        """Make the result: here, where memory and device for the model are."""
        from abbe.studies import merge

        until = time.monotonic() + patience
        while True:
            try:
                merge(folder, progress=False)
                return
            except AbbeError as error:  # a machine that was lost seems to be at work until its mark expires
                if _SHARED not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(_SPELL)


class Crew:
    """The actors, and the one loop that keeps them busy: an actor never has more than one call to answer."""

    def __init__(self, ray: Any, actors: int, threads: int, gpus: float) -> None:
        self._ray = ray
        # Ray's own defaults are no restarts and no second try.
        remote = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=RESTARTS, max_task_retries=RESTARTS)(Actor)
        self._actors = [remote.remote(threads) for _ in range(actors)]
        self._dead: dict[int, str] = {}
        # By the answer that is expected. An actor that Ray cannot place yet has not greeted, and gets no work.
        self._calls = {actor.greet.remote(): _Call(number) for number, actor in enumerate(self._actors)}

    def run(self, jobs: Sequence[Job], watch: Watch) -> None:
        """Work on all of them, each to its end; a job that fails says why and does not stop the others."""
        shown = _Shown(watch, jobs, len(self._actors))
        idle: list[int] = []
        begun, waiting = time.monotonic(), len(self._calls) > 0
        while not all(job.is_over for job in jobs):
            idle = [number for number in idle if not self._begin(number, jobs)]
            if self._calls:
                answers, _ = self._ray.wait(list(self._calls), timeout=_SPELL)
                idle += [number for answer in answers for number in self._hear(answer)]
                waiting = waiting and not answers
            if waiting and time.monotonic() - begun > _PATIENCE:
                watch.announce(
                    f"Ray has started none of {many(len(self._actors), 'actor')} yet: is there room for them?"
                )
                waiting = False
            for job in jobs:
                job.error = job.error or self._given_up(job)
            shown.show()

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)

    def _begin(self, number: int, jobs: Sequence[Job]) -> bool:
        """Give an actor something to do, if there is something for it."""
        able = [job for job in jobs if not job.is_over and number not in job.refused]
        actor = self._actors[number]
        merging = next((job for job in able if job.waits_for_merge), None)
        job = merging or _neediest(able)
        if job is None:
            return False
        job.workers.add(number)
        if merging is not None:
            answer = actor.merge.remote(str(job.folder), expires_after() + _SLACK)
        else:
            answer = actor.work.remote(job.study, dict(job.arguments), str(job.folder))
        self._calls[answer] = _Call(number, job, merging is not None)
        return True

    def _hear(self, answer: Any) -> list[int]:
        """What an actor says; gives its number if it lives."""
        call = self._calls.pop(answer)
        if call.job is not None:
            call.job.workers.discard(call.actor)
        try:
            self._ray.get(answer)
        except self._ray.exceptions.RayActorError as error:
            self._dead[call.actor] = first_line(error)
            return []
        except Exception as error:
            if call.job is not None:
                # The actor's own error: Ray's carries the whole traceback.
                call.job.refused[call.actor] = one_line(getattr(error, "cause", None) or error)
            return [call.actor]
        if call.job is not None:
            call.job.worked_out, call.job.merged = True, call.merges
        return [call.actor]

    def _given_up(self, job: Job) -> str:
        """Why nobody can bring a job to its end; empty if somebody may."""
        if job.merged or job.workers:
            return ""
        if any(number not in job.refused and number not in self._dead for number in range(len(self._actors))):
            return ""
        why = next(iter(job.refused.values()), "")
        return why or f"every actor died {RESTARTS + 1} times: {next(iter(self._dead.values()))}"


@dataclass(frozen=True)
class _Call:
    actor: int
    job: Job | None = None
    merges: bool = False


class _Shown:
    """Parts of all folders as one bar, with their rate."""

    def __init__(self, watch: Watch, jobs: Sequence[Job], actors: int) -> None:
        self._watch, self._jobs, self._actors = watch, jobs, actors
        self._started = time.monotonic()
        self._before: int | None = None  # parts that were there when the actors came
        self._last: dict[int, tuple[int, int]] = {}  # of jobs that are over the folder knows no parts any more
        self._steps = self._total = 0

    def show(self) -> None:
        for place, job in enumerate(self._jobs):
            there, total = (0, 0) if job.is_over else job.parts()
            if total:
                self._last[place] = there, total
            elif job.merged and place in self._last:
                self._last[place] = (self._last[place][1],) * 2
        there, total = (sum(pair[index] for pair in self._last.values()) for index in (0, 1))
        if self._before is None and total:
            self._before, self._started = there, time.monotonic()
        if total != self._total:  # a stage that nobody knew of before
            self._watch.expect(total)
            self._total, self._steps = total, 0
        while self._steps < there:
            self._steps += 1
            self._watch.step(self._rate(there))

    def _rate(self, there: int) -> str:
        seconds = max(time.monotonic() - self._started, 1e-9)
        made = there - (self._before or 0)
        over = sum(job.is_over for job in self._jobs)
        models = f"{over} of {many(len(self._jobs), 'model')}, " if len(self._jobs) > 1 else ""
        return f"{models}{many(self._actors, 'actor')}, {60 * made / seconds:.0f} parts per minute"


def _neediest(jobs: Sequence[Job]) -> Job | None:
    """One that nobody works on; if there is none, the one that has most parts for another worker."""
    open_jobs = [job for job in jobs if not job.worked_out]
    unattended = next((job for job in open_jobs if not job.workers), None)
    if unattended is not None or not open_jobs:
        return unattended
    if len(jobs) == 1:
        return open_jobs[0]
    return max((job for job in open_jobs if _unclaimed(job) > 0), key=_unclaimed, default=None)


def _unclaimed(job: Job) -> int:
    """About so many parts wait for somebody; a worker that loads the model for none of them would be in vain."""
    there, total = job.parts()
    return total - there - 2 * len(job.workers)
