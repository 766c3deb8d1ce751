"""What a shared folder records about its parts: which there are, their files, and their failures.

A study that runs as a worker lists the parts of each stage here, so that they can be counted without the model. All
files lie in one folder of the run (`SHARED`); each is written once, by the first worker to come.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from ...._errors import AbbeError
from ...._files import checked, is_unfinished, read_json, write_json_once
from ...._workers import CLAIMS, SHARED, WORKERS, here

ATTEMPTS = 3  # a part that failed this often is left out
_REQUEST, _STAGES, _REMEMBERED, _FAILED = "asked.json", "stages", "remembered", "failed"
_FOLDERS = (_STAGES, _REMEMBERED, _FAILED, CLAIMS, WORKERS)
_OURS = re.compile(
    rf"{re.escape(_REQUEST)}|{_STAGES}/[0-9a-f]{{16}}\.json|{_REMEMBERED}/run[^/]*\.json|{_FAILED}/[^/]+-[1-{ATTEMPTS}]\.json"
    rf"|(?:{CLAIMS}|{WORKERS})/[^/]+\.json"
)


@dataclass(frozen=True)
class Unit:
    """A part that one worker makes at a time; it is there when all of its files are."""

    name: str
    files: tuple[Path, ...]

    @property
    def is_there(self) -> bool:
        return all(file.is_file() for file in self.files)


@dataclass(frozen=True)
class Failure:
    """A part that failed: why, and where last.

    Attributes:
        part: its name, such as "windows/256-3".
        reason: of the last attempt.
        host: where that was.
        attempts: how many there were; after the third the part is left out.
        workers: who has tried it.
    """

    part: str
    reason: str
    host: str
    attempts: int
    workers: tuple[str, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether the part is left out, as it failed three times."""
        return self.attempts >= ATTEMPTS

    def __str__(self) -> str:
        times = {1: "once", 2: "twice"}.get(self.attempts, f"{self.attempts} times")
        return f"{self.part} failed {times}, last on {self.host}: {self.reason}"


class Board:
    """What workers keep in a run folder next to its parts."""

    def __init__(self, run: Path) -> None:
        self.run, self.folder = run, run / SHARED

    def request(self) -> dict[str, Any] | None:
        """Which study with which arguments; None if no worker has begun one."""
        return _read(self.folder / _REQUEST)

    def set_request(self, request: Mapping[str, Any]) -> None:
        """Written by the first worker that knows that the folder belongs to its run."""
        _write(self.folder / _REQUEST, request)

    def list_stage(self, units: Sequence[Unit]) -> None:
        listed = {unit.name: [str(file.relative_to(self.run)) for file in unit.files] for unit in units}
        name = hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]
        _write(self.folder / _STAGES / f"{name}.json", listed)

    def units(self) -> list[Unit]:
        """Of all stages that a worker has reached."""
        files: dict[str, tuple[Path, ...]] = {}
        for path in sorted((self.folder / _STAGES).glob("*.json")):
            with suppress(AbbeError):
                content = checked(path, read_json(path))
                files |= {name: tuple(self.run / file for file in some) for name, some in content.items()}
        return [Unit(name, some) for name, some in files.items()]

    def remember(self, folder: Path, content: Mapping[str, Any]) -> None:
        """What a run in the folder needs, apart from its parts, to be merged without its model."""
        _write(self._remembered(folder), content)

    def remembered(self, folder: Path) -> dict[str, Any] | None:
        return _read(self._remembered(folder))

    def fail(self, unit: Unit, reason: str, worker: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        content = here() | {"part": unit.name, "reason": reason, "worker": worker, "when": now}
        for attempt in range(1, ATTEMPTS + 1):
            if _write(self._failure(unit, attempt), content):
                return

    def failure(self, unit: Unit) -> Failure | None:
        """The last one of a missing part."""
        last: Failure | None = None
        for attempt in range(1, ATTEMPTS + 1):
            path = self._failure(unit, attempt)
            if not path.is_file():
                break
            with suppress(AbbeError):
                content = read_json(path)
                workers = (*(last.workers if last is not None else ()), str(content.get("worker")))
                last = Failure(unit.name, str(content.get("reason")), str(content.get("host")), attempt, workers)
        return last

    def failed_names(self) -> set[str]:
        """Of parts with a failure; they may have been made since."""
        return {str(content.get("part")) for _, content in self._failures()}

    def has_given_up(self, unit: Unit) -> bool:
        return self._failure(unit, ATTEMPTS).is_file()

    def left(self, units: Sequence[Unit], needed: bool = False) -> list[Unit]:
        """Missing parts, except those that were given up and are not needed, by listing their folders.

        NFS may remember for a while that a file was not found; a list of the folder is always fresh.
        """
        names: dict[Path, set[str]] = {}

        def is_listed(file: Path) -> bool:
            if file.parent not in names:
                names[file.parent] = _names_in(file.parent)
            return file.name in names[file.parent]

        def is_over(unit: Unit) -> bool:
            return all(map(is_listed, unit.files)) or (not needed and is_listed(self._failure(unit, ATTEMPTS)))

        return [unit for unit in units if not is_over(unit)]

    def forgive(self, unit: Unit) -> None:
        """It was made after all."""
        for attempt in range(1, ATTEMPTS + 1):
            with suppress(OSError):
                self._failure(unit, attempt).unlink()

    def set_aside(self, living: Collection[str]) -> int:
        """Give fresh attempts to parts that failed in earlier calls, whose workers are all gone; returns how many."""
        parts: dict[str, list[tuple[Path, object]]] = {}
        for path, content in self._failures():
            parts.setdefault(str(content.get("part")), []).append((path, content.get("worker")))
        earlier = [tries for tries in parts.values() if not any(worker in living for _, worker in tries)]
        for path, _ in (one for tries in earlier for one in reversed(tries)):
            with suppress(OSError):
                path.unlink()
        return len(earlier)

    def clear(self) -> None:
        """The run is finished: remove everything but its parts and foreign files."""
        places = [self.folder, *(self.folder / name for name in _FOLDERS)]
        if self.folder.is_symlink():
            return
        for path in [one for place in places if not place.is_symlink() for one in place.glob("*")]:
            if is_of_workers(path.relative_to(self.run)):
                with suppress(OSError):
                    path.unlink()
        for place in reversed(places):
            with suppress(OSError):  # not empty
                place.rmdir()

    def _failures(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        for path in sorted((self.folder / _FAILED).glob("*.json")):
            with suppress(AbbeError):
                yield path, read_json(path)

    def _remembered(self, folder: Path) -> Path:
        within = Path(os.path.realpath(folder)).relative_to(self.run)
        return self.folder / _REMEMBERED / f"{'+'.join(('run', *within.parts))}.json"

    def _failure(self, unit: Unit, attempt: int) -> Path:
        return self.folder / _FAILED / f"{unit.name.replace('/', '+')}-{attempt}.json"


def _read(path: Path) -> dict[str, Any] | None:
    return checked(path, read_json(path)) if path.is_file() else None


def _write(path: Path, content: Mapping[str, Any]) -> bool:
    if path.is_file():
        return False
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    return write_json_once(path, content)


def one_line(error: BaseException) -> str:
    """What an error says, with its type unless it is an `AbbeError`."""
    text = " ".join(str(error).split())
    return text if isinstance(error, AbbeError) else f"{type(error).__name__}: {text}"


def is_of_workers(path: Path) -> bool:
    """Whether workers write this file, relative to its run folder, next to the parts: it may be removed."""
    if path.parts[0] != SHARED or len(path.parts) > 3:
        return False
    within = path.relative_to(SHARED)
    if is_unfinished(within):
        return within.parent == Path() or within.parent.name in _FOLDERS
    return _OURS.fullmatch(within.as_posix()) is not None


def failures(board: Board, units: Iterable[Unit]) -> tuple[Failure, ...]:
    missing = (board.failure(unit) for unit in units if not unit.is_there)
    return tuple(failure for failure in missing if failure is not None)


def refuse_all_failed(failed: Sequence[Failure], parts: str) -> NoReturn:
    raise AbbeError(
        f"all {parts} failed, so there is nothing to merge; the first: {failed[0]}; fix that, then --shard any tries "
        "them again, or the same command without --shard shows why"
    )


def _names_in(folder: Path) -> set[str]:
    """Files in a folder, which may be missing."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}  # a folder may stand in the way
    except OSError:
        return set()
