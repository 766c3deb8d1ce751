"""Who makes the parts of a study: this process, one shard of several, or Ray's actors (`runs.ray`).

Parts are independent, and making one twice is harmless, so that a shard needs no claims and no heartbeats: the parts
at its places are its share. The same call without a shard makes what is missing, and the result.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from .._arguments import shown
from .._errors import AbbeError
from .._locks import LOCK

T = TypeVar("T")
Make = Callable[[str], object]
Has = Callable[[str], bool]
SLURM = "slurm"
_ID, _COUNT, _MIN = "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"


class Executor(ABC):
    """Makes the missing parts of a stage."""

    lock = LOCK  # file by which a folder is held

    @abstractmethod
    def make(self, folder: Path | None, names: Sequence[str], make: Make, step: Make, has: Has) -> None:
        """Make the missing parts, as `Parts.each` asks."""

    def finish(self) -> None:  # noqa: B027 - nothing to do for most
        """Called before the result is saved: all parts are there."""

    def close(self) -> None:  # noqa: B027 - nothing to do for most
        """Called at the end of the study, however it ends."""


class Local(Executor):
    """Every missing part, one after the other."""

    def make(self, folder: Path | None, names: Sequence[str], make: Make, step: Make, has: Has) -> None:
        for name in names:
            if not has(name):
                make(name)
            step(name)


_executor: ContextVar[Executor] = ContextVar("executor", default=Local())  # noqa: B039 - it holds no state


def current() -> Executor:
    """The executor of studies that are called now."""
    return _executor.get()


@contextmanager
def using(executor: Executor) -> Iterator[None]:
    """Studies called within have this executor."""
    token = _executor.set(executor)
    try:
        yield
    finally:
        _executor.reset(token)


class ShareDone(BaseException):
    """A shard has made its share, and the study cannot go on without the others. Not an error: nothing catches it."""


@dataclass
class Shard(Executor):
    """One of `count` equal shares of the parts of a study: `number`, from 1 on.

    Parts are dealt out in turn, so that every share has long windows.

    Attributes:
        number: of this share, from 1 on.
        count: of all shares.
        made: parts that this shard has made now.
        total: parts of the stages that it came to.
        missing: those that are not there yet.
    """

    number: int
    count: int
    made: int = 0
    total: int = 0
    missing: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Shards share a folder, but the same shard runs only once."""
        self.lock = f".shard-{self.number}-of-{self.count}{LOCK}"

    def make(self, folder: Path | None, names: Sequence[str], make: Make, step: Make, has: Has) -> None:
        """Make this share of the missing parts; as `Parts.each` calls it.

        Args:
            folder: of the run.
            names: of all parts.
            make: makes one of them.
            step: called after each.
            has: whether one is there.
        """
        if folder is None:
            raise AbbeError("a shard leaves its parts in a folder: give folder=...")
        first = (self.number - 1 - self.total) % self.count  # dealing goes on from stage to stage
        for name in names[first :: self.count]:
            if not has(name):
                with using(Local()):
                    make(name)
                self.made += 1
            step(name)
        self.total += len(names)
        missing = [name for name in names if not has(name)]
        self.missing += missing
        if missing:
            raise ShareDone

    def finish(self) -> None:
        """Stop the study: a shard makes no result."""
        raise ShareDone

    def __str__(self) -> str:
        parts = f"{self.made} part{'' if self.made == 1 else 's'} made"
        left = f"{len(self.missing)} of {self.total} missing" if self.missing else f"all {self.total} are there"
        return f"shard {self.number}/{self.count}: {parts}, {left}"


@contextmanager
def shard(share: str) -> Iterator[Shard]:
    """Make one share of the parts of the study that is called within, then stop it.

    When all shares are made, `abbe.merge`, or the same call without a shard, makes what is missing and the result.

    Args:
        share: "I/N" such as "3/16", or "slurm" for a task of a job array.

    Returns:
        The shard, which counts what it made.

    Raises:
        AbbeError: the share is none, or the study has no folder.

    Examples:
        >>> with abbe.shard("1/2") as share:
        ...     abbe.diagnose(lengths=32, windows=2, queries=4, folder="run", progress=False)
        >>> print(share)
        shard 1/2: 1 part made, 1 of 2 missing
        >>> abbe.merge("run", progress=False).table.height > 0
        True
    """
    executor = _as_shard(share)
    try:
        with using(executor):
            yield executor
    except ShareDone:
        return


def all_stages(stages: Iterable[Callable[[], T]]) -> list[T]:
    """The results of stages that do not need each other: a shard makes its share of each before it stops."""
    results, stopped = [], False
    for stage in stages:
        try:
            results.append(stage())
        except ShareDone:
            stopped = True
    if stopped:
        raise ShareDone
    return results


def _as_shard(share: object) -> Shard:
    if share == SLURM:  # tasks need not start at 1, but must have no gaps
        number, count = _variable(_ID), _variable(_COUNT)
        first = _variable(_MIN) if _MIN in os.environ else 1
        if not first <= number < first + count:
            raise AbbeError(
                f"shard is {SLURM}, but task {number} is none of {count} from {first} on: give the array a range "
                f"without gaps, such as --array={first}-{first + count - 1}"
            )
        return Shard(number - first + 1, count)
    parts = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", share) if isinstance(share, str) else None
    if parts is None:
        raise AbbeError(f"shard is {shown(share)}, but must be I/N, such as 3/16, or {SLURM}")
    number, count = int(parts[1]), int(parts[2])
    if count < 1:
        raise AbbeError(f"shard is {number}/{count}, but N of I/N must be at least 1, such as 1/1")
    if not 1 <= number <= count:
        raise AbbeError(f"shard is {number}/{count}, but shards of {count} are 1/{count} to {count}/{count}")
    return Shard(number, count)


def _variable(name: str) -> int:
    value = os.environ.get(name, "")
    if not value.isdecimal():
        problem = f"{name} is {shown(value)}" if value else f"{name} is not set"
        raise AbbeError(f"shard is {SLURM}, but {problem}: start it with sbatch --array=1-16, or give I/N")
    return int(value)
