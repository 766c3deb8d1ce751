"""Which share of the parts a worker makes: I of N, or any that nobody else has claimed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ...._arguments import shown
from ...._errors import AbbeError

ANY, SLURM = "any", "slurm"
_ID, _COUNT, _MIN = "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"


@dataclass(frozen=True)
class Shard:
    """The `number`-th of `count` shares, from 1 on: parts are dealt out in turn, so every share has long windows."""

    number: int
    count: int

    def has(self, place: int) -> bool:
        return place % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def as_shard(shard: object) -> Shard | None:
    """None or "any" for all that is left, "I/N", or "slurm" for a task of a job array."""
    if shard is None or shard == ANY:
        return None
    if shard == SLURM:
        return _of_slurm()
    parts = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", shard) if isinstance(shard, str) else None
    if parts is None:
        raise AbbeError(f"shard is {shown(shard)}, but must be I/N, such as 3/16, {SLURM} or {ANY}")
    number, count = int(parts[1]), int(parts[2])
    if count < 1:
        raise AbbeError(f"shard is {number}/{count}, but N of I/N must be at least 1, such as 1/1")
    if not 1 <= number <= count:
        raise AbbeError(f"shard is {number}/{count}, but shards of {count} are 1/{count} to {count}/{count}")
    return Shard(number, count)


def _of_slurm() -> Shard:
    """Tasks need not start at 1, but must have no gaps."""
    number, count = _variable(_ID), _variable(_COUNT)
    first = _variable(_MIN) if _MIN in os.environ else 1
    if not first <= number < first + count:
        raise AbbeError(
            f"shard is {SLURM}, but task {number} is none of {count} from {first} on: give the array a range without "
            f"gaps, such as --array={first}-{first + count - 1}"
        )
    return Shard(number - first + 1, count)


def _variable(name: str) -> int:
    value = os.environ.get(name, "")
    if not value.isdecimal():
        problem = f"{name} is {shown(value)}" if value else f"{name} is not set"
        raise AbbeError(f"shard is {SLURM}, but {problem}: start it with sbatch --array=1-16, or give I/N")
    return int(value)
