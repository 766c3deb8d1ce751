"""on_ray: studies called within run on actors of Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..._arguments import whole
from ..._errors import AbbeError
from ...results import Result
from .. import _open
from .._engine.inputs import as_folder
from .._engine.sharing.calls import call_as_json, call_from_json, current_engine
from .._engine.sharing.crew import temporarily
from .._engine.watch import watching
from .cluster import cluster
from .jobs import Crew, Job


class RayEngine:
    """The engine of studies called within `on_ray`."""

    def __init__(self, ray: Any, actors: int, threads: int, gpus: float) -> None:
        self._ray, self._actors, self._threads, self._gpus = ray, actors, threads, gpus

    def run(self, study: str, arguments: Mapping[str, Any]) -> Result:
        (job,) = self.run_all([(study, arguments)])
        if job.error:
            raise AbbeError(job.error)
        return _open.open(job.folder)

    def run_all(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Job]:
        """Several studies, side by side; each job says whether it has a result."""
        jobs = [_job(study, arguments) for study, arguments in calls]
        crew = Crew(self._ray, self._actors, self._threads, self._gpus)
        try:
            with watching(any(arguments.get("progress", True) for _, arguments in calls)) as watch:
                crew.run(jobs, watch)
        finally:  # also after Ctrl-C: finished parts are in the folder
            crew.close()
        return jobs


def _job(study: str, arguments: Mapping[str, Any]) -> Job:
    folder = as_folder(arguments.get("folder"))
    if folder is None:
        raise AbbeError("actors share a folder: give folder=...")
    sent, absent = call_from_json(call_as_json(arguments))
    if absent:
        names = " and ".join(absent)
        raise AbbeError(f"{names} cannot be sent to actors: every one loads its own copy, so give a name or a folder")
    return Job(study, sent, Path(os.path.realpath(folder)))


def _fitting(room: Mapping[str, float], threads: int, gpus: float) -> int:
    return int(min([room.get("CPU", 0) // threads, *([room.get("GPU", 0) // gpus] if gpus else [])]))


@contextmanager
def on_ray(
    address: str | None = None, *, actors: int | None = None, threads: int = 1, gpus: float | None = 0
) -> Iterator[RayEngine]:
    """Run the studies called within on actors of Ray, each with a copy of the model.

    The result is that of a single process. A dead actor is restarted; finished parts stay in the run folder, from which
    the same call resumes.

    Args:
        address: of a cluster ("auto" for the one that this machine belongs to, "host:6379", "ray://host:10001"); by
            default an instance on this machine that ends with the context.
        actors: how many, >= 1; by default as many as fit on this machine, or on the free part of the cluster.
        threads: cores per actor, >= 1.
        gpus: per actor; 0.5 lets two share one, None means one if there are any.

    Raises:
        AbbeError: Ray is not installed, or has too little room.

    Examples:
        >>> with abbe.on_ray(actors=0):
        ...     report = abbe.report("smollm2", "book.txt", folder="shared/smollm2")
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: actors is 0, ...
    """
    whole("threads", threads, 1)
    if actors is not None:
        whole("actors", actors, 1)
    if current_engine.get() is not None:
        raise AbbeError("on_ray cannot be used within on_ray")
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with cluster(address, threads * (actors or max(1, here // threads))) as ray:
        there = ray.cluster_resources()
        if gpus is None:
            gpus = 1 if there.get("GPU", 0) else 0
        most, now = (_fitting(room, threads, gpus) for room in (there, ray.available_resources()))
        if most < (actors or 1):
            has = f"{there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} GPUs"
            raise AbbeError(
                f"Ray has {has}, too few for {actors or 1} actors of {threads} cores"
                f"{f' and {gpus:g} GPUs' if gpus else ''} each: at most {most} fit"
            )
        engine = RayEngine(ray, actors or max(1, now), threads, gpus)
        with temporarily(current_engine, engine):
            yield engine
