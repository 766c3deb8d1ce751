"""Jobs, each the run folder of one study, and actors that work on them until all are merged.

What is special: Ray does not hand out parts. An actor is a worker like any other (`abbe.work`): it claims the parts
of the folder one by one, so a lost answer or a killed actor costs at most the time of one part.
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

RESTARTS = 3  # of a dead actor
_SPELL = 0.5  # seconds between two looks at the folders
_PATIENCE = 60.0  # seconds without any actor before a line says so
_SLACK = 10.0  # seconds beyond the expiry of marks
_SHARED = "is shared by"  # in the error of a merge while others seem to be at work


@dataclass
class Job:
    """A study in a folder. `error` says in one line why there is no result."""

    study: str
    arguments: Mapping[str, Any]
    folder: Path
    error: str = ""
    merged: bool = False
    worked_out: bool = False  # an actor found nothing more to make: only merging remains
    workers: set[int] = field(default_factory=set)  # actors with a call for it
    refused: dict[int, str] = field(default_factory=dict)  # by actor, why it could not do it

    @property
    def is_over(self) -> bool:
        return self.merged or bool(self.error)

    @property
    def waits_for_merge(self) -> bool:
        return self.worked_out and not self.workers and not self.is_over

    def parts(self) -> tuple[int, int]:
        """How many are there, of how many known ones."""
        if not self.folder.is_dir():
            return 0, 0
        now = progress(self.folder)
        return now.there, now.total


class Actor:
    """Runs in a separate process, which Ray starts: one model at a time."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)

    def greet(self) -> None:
        """Returns as soon as the actor runs."""

    def work(self, study: str, arguments: Mapping[str, Any], folder: str) -> None:
        """Make parts until none is left."""
        from abbe.studies import work

        done = work(study, **arguments, folder=folder, progress=False)
        if done.stopped:  # something is wrong with this machine: others continue
            raise AbbeError(done.stopped)

    def merge(self, folder: str, patience: float) -> None:
        """Make the result in the actor, which has the memory and device for the model."""
        from abbe.studies import merge

        until = time.monotonic() + patience
        while True:
            try:
                merge(folder, progress=False)
                return
            except AbbeError as error:  # a lost machine seems to be at work until its mark expires
                if _SHARED not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(_SPELL)


class Crew:
    """The actors, and the loop that keeps them busy: an actor never has more than one pending call."""

    def __init__(self, ray: Any, actors: int, threads: int, gpus: float) -> None:
        self._ray = ray
        # Ray's defaults are no restarts and no retries.
        remote = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=RESTARTS, max_task_retries=RESTARTS)(Actor)
        self._actors = [remote.remote(threads) for _ in range(actors)]
        self._dead: dict[int, str] = {}
        # By the pending answer. An actor that Ray has not placed yet has not greeted, and gets no work.
        self._calls = {actor.greet.remote(): _Call(number) for number, actor in enumerate(self._actors)}

    def run(self, jobs: Sequence[Job], watch: Watch) -> None:
        """Work on all of them to the end; a failed job says why and does not stop the others."""
        bar = _Bar(watch, jobs, len(self._actors))
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
            bar.update()

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)

    def _begin(self, number: int, jobs: Sequence[Job]) -> bool:
        """Give an actor something to do; False if there is nothing for it."""
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
        """Process an answer; returns the actor's number if it is alive."""
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
        """Why nobody can finish a job; empty if somebody may."""
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


class _Bar:
    """Parts of all folders as one bar, with their rate."""

    def __init__(self, watch: Watch, jobs: Sequence[Job], actors: int) -> None:
        self._watch, self._jobs, self._actors = watch, jobs, actors
        self._started = time.monotonic()
        self._before: int | None = None  # parts that were there before the actors started
        self._last: dict[int, tuple[int, int]] = {}  # the folder of a finished job knows no parts any more
        self._steps = self._total = 0

    def update(self) -> None:
        for place, job in enumerate(self._jobs):
            there, total = (0, 0) if job.is_over else job.parts()
            if total:
                self._last[place] = there, total
            elif job.merged and place in self._last:
                self._last[place] = (self._last[place][1],) * 2
        there, total = (sum(pair[index] for pair in self._last.values()) for index in (0, 1))
        if self._before is None and total:
            self._before, self._started = there, time.monotonic()
        if total != self._total:  # a new stage
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
    """A job that nobody works on; else the one with most parts for another worker."""
    open_jobs = [job for job in jobs if not job.worked_out]
    unattended = next((job for job in open_jobs if not job.workers), None)
    if unattended is not None or not open_jobs:
        return unattended
    if len(jobs) == 1:
        return open_jobs[0]
    return max((job for job in open_jobs if _unclaimed(job) > 0), key=_unclaimed, default=None)


def _unclaimed(job: Job) -> int:
    """Roughly how many parts are waiting: a worker without one would load the model in vain."""
    there, total = job.parts()
    return total - there - 2 * len(job.workers)
