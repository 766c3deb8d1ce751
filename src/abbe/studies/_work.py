"""work: one of several workers that share the run folder of a study."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._errors import AbbeError
from .._locks import shared
from ._engine.inputs import as_folder
from ._engine.sharing.board import Board, Failure, failures
from ._engine.sharing.crew import Enough, Worker, current, is_shared, temporarily
from ._engine.sharing.shard import as_shard

STUDIES = (
    *("diagnose", "report", "reproduce", "capacity", "compare", "calibrate"),
    *("train_temperature", "train_length", "train_recall", "train_text"),
)


@dataclass(frozen=True)
class Progress:
    """Progress of a shared folder.

    Attributes:
        folder: the run folder.
        there: parts that are finished, whoever made them.
        total: parts in all stages reached so far; `capacity` and others learn of more once these are finished.
        made: parts that this worker made.
        failed: parts that failed, with the reason; after the third time they are left out.
        complete: only `merge` remains.
        stopped: why this worker stopped although parts are left; else empty.
    """

    folder: Path
    there: int
    total: int
    made: int = 0
    failed: tuple[Failure, ...] = ()
    complete: bool = False
    stopped: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether parts were left out, or this worker could not make any."""
        return bool(self.stopped) or any(failure.is_final for failure in self.failed)

    def as_json(self) -> dict[str, Any]:
        """Its fields by name."""
        return asdict(self) | {"folder": str(self.folder)}

    def __str__(self) -> str:
        """The last line of a shard."""
        made = f", {self.made} of them computed here" if self.made else ""
        failed = f", {len(self.failed)} failed" if self.failed else ""
        all_done = f"all done but {len(self.failed)} that failed (see above)" if self.failed else "all done"
        then = f"; {all_done}: abbe merge {self.folder}" if self.complete else ""
        return f"{self.folder} holds {self.there} of {self.total} parts{made}{failed}{then}"


def work(study: str, *args: Any, folder: str | os.PathLike[str], shard: str | None = None, **kwargs: Any) -> Progress:
    """Make parts of a study together with other workers, which may be on other machines; `merge` makes the result.

    Every part is made by one worker at a time; claims of a dead worker are taken over after 90 seconds, on the same
    machine at once. A part that fails is tried three times, by other workers if there are any, then left out. A worker
    stops if five parts fail before it has made one. Results depend on parts, not on workers: the merged result is that
    of a single process.

    Args:
        study: its name, such as "report" or "train_temperature".
        args: of the study, the same for all workers.
        folder: the run folder that they share.
        shard: "I/N" for the I-th of N equal shares, "slurm" for the share of a job array's task, None (or "any") for
            parts that nobody else makes, until all are there; those that failed in earlier calls are tried again.
        kwargs: of the study, the same for all workers.

    Returns:
        The progress of the folder.

    Examples:
        >>> small = {"lengths": 32, "windows": 2, "queries": 4, "folder": "shared", "progress": False}
        >>> for shard in ("1/2", "2/2"):
        ...     done = abbe.work("diagnose", **small, shard=shard)
        >>> done.complete
        True
    """
    if study not in STUDIES:
        raise AbbeError(f"there is no study {study!r} to work on: choose one of {', '.join(STUDIES)}")
    from .. import studies

    call: Callable[..., Any] = getattr(studies, study)
    with working(folder, shard) as worker:
        call(*args, folder=folder, **kwargs)
    return progress_of(worker, folder)


@contextmanager
def working(folder: str | os.PathLike[str], shard: str | None) -> Iterator[Worker]:
    """A study called within is one of the workers of a folder.

    Args:
        folder: that they share.
        shard: as for `work`.

    Raises:
        AbbeError: there is no folder, or this process is already a worker.

    Examples:
        >>> with abbe.studies.working("shared", "1/1") as worker:
        ...     _ = abbe.diagnose(lengths=32, windows=2, queries=4, folder="shared", progress=False)
        >>> worker.is_complete
        True
    """
    share, place = as_shard(shard), as_folder(folder)
    if place is None:
        raise AbbeError("workers share a folder: give folder=...")
    if is_shared():
        raise AbbeError("this process is already a worker: one study at a time")
    with shared(place) as alive:
        worker = Worker(Board(Path(os.path.realpath(place))), alive, share)
        with suppress(Enough), temporarily(current, worker):
            yield worker


def progress_of(worker: Worker, folder: str | os.PathLike[str]) -> Progress:
    """Progress of a worker and of the folder that it shares.

    Args:
        worker: that `working` gave.
        folder: that it shares.

    Returns:
        Parts that are finished, made here, and failed.

    Examples:
        >>> with abbe.studies.working("shared", "1/1") as worker:
        ...     _ = abbe.diagnose(lengths=32, windows=2, queries=4, folder="shared", progress=False)
        >>> abbe.studies.progress_of(worker, "shared").complete
        True
    """
    there = sum(unit.is_there for unit in worker.units)
    failed = failures(worker.board, worker.units)
    return Progress(Path(folder), there, len(worker.units), worker.made, failed, worker.is_complete, worker.stopped)


def progress(folder: str | os.PathLike[str]) -> Progress:
    """Progress of the workers of a folder, from its files alone.

    Args:
        folder: that they share.

    Returns:
        Parts that are finished and that failed.

    Examples:
        >>> _ = abbe.work("diagnose", lengths=32, windows=2, queries=4, folder="shared", shard="1/2", progress=False)
        >>> done = abbe.studies.progress("shared")
        >>> 0 < done.there < done.total
        True
    """
    board = Board(Path(os.path.realpath(folder)))
    units = board.units()
    return Progress(Path(folder), sum(unit.is_there for unit in units), len(units), 0, failures(board, units))
