"""Workers that share a folder: each claims the parts it computes, and the claims of a dead worker become free again.

What is special: no locks, which network file systems lose. A claim is a file that only one process can create (a link);
its process touches it while it is alive, and a claim that was not touched for a while has expired. All times come from
the file system: clocks of machines differ. No worker removes a live claim of another: the claims of a part are
numbered, a worker adds the next number next to an expired claim and then looks once more. Of two workers that claim at
the same time, at least the later one sees the other, and withdraws. On the same machine, a dead process is noticed at
once.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from ._errors import AbbeError
from ._files import CannotWrite, write_once

SHARED = ".abbe-work"  # folder within a run folder: workers, claims and failures
WORKERS, CLAIMS = "workers", "claims"
_EXPIRES = "ABBE_CLAIM_SECONDS"  # environment variable: seconds without a touch after which a claim expires
_BEATS = 6  # touches in that time: some may be late


def expires_after() -> float:
    """Seconds; network file systems may show times that are up to a minute old."""
    setting = os.environ.get(_EXPIRES, "90")
    with suppress(ValueError):
        if 0 < (seconds := float(setting)) < math.inf:
            return seconds
    raise AbbeError(f"{_EXPIRES} is {setting!r}, but must be a number of seconds > 0, such as 90")


@dataclass(frozen=True)
class _Mark:
    """A file that a process touches while it is alive, as it was read."""

    owner: dict[str, Any]
    touched: float

    def has_expired(self, now: float) -> bool:
        if self.owner.get("machine") == _machine() and not _is_running(self.owner.get("process")):
            return True
        return now - self.touched > expires_after()


class Alive:
    """This process among the workers of a folder, and what it has claimed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / SHARED
        self.name = secrets.token_hex(8)
        self._mark = self.folder / WORKERS / f"{self.name}.json"
        self._touched = {self._mark}
        self._claims: dict[str, Path] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="abbe-alive", daemon=True)

    def __enter__(self) -> Alive:
        expires_after()  # an invalid setting fails here, not in the thread
        self._write(self._mark)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        for path in list(self._touched):
            self._remove(path)
        for folder in (self.folder / CLAIMS, self.folder / WORKERS, self.folder):
            with suppress(OSError):  # not empty
                folder.rmdir()

    def claim(self, name: str) -> bool:
        """Whether this process alone may compute the part of this name until it is released."""
        if name in self._claims:
            return True
        before = self._numbered(name)
        if self._any_alive(before.values()):
            return False
        path = self.folder / CLAIMS / f"{_plain(name)}.{max(before, default=-1) + 1}.json"
        if not self._write(path):
            return False
        after = [one for one in self._numbered(name).values() if one != path]
        if self._any_alive(after):  # a worker that looked earlier has claimed it, too
            self._remove(path)
            return False
        self._touched.add(path)
        self._claims[name] = path
        for expired in after:
            with suppress(OSError):
                expired.unlink()
        return True

    def release(self, name: str) -> None:
        if name in self._claims:
            self._remove(self._claims.pop(name))

    def now(self) -> float:
        """The time by the file system's clock."""
        return _touch(self._mark)

    def others(self) -> set[str]:
        """Names of the other live workers of the folder."""
        paths = sorted((self.folder / WORKERS).glob("*.json"))
        marks = [(path.stem, _read(path)) for path in paths if path != self._mark]
        now = self.now() if marks else 0.0
        return {name for name, mark in marks if mark is not None and not mark.has_expired(now)}

    def _numbered(self, name: str) -> dict[int, Path]:
        """All claims of a part, whether their workers are alive or dead."""
        folder, pattern = self.folder / CLAIMS, re.compile(rf"{re.escape(_plain(name))}\.(\d+)\.json")
        try:
            files = os.listdir(folder)
        except OSError:
            return {}
        return {int(parts[1]): folder / file for file in files if (parts := pattern.fullmatch(file)) is not None}

    def _any_alive(self, claims: Iterable[Path]) -> bool:
        marks = [mark for path in claims if (mark := _read(path)) is not None]
        now = self.now() if marks else 0.0
        return any(not mark.has_expired(now) for mark in marks)

    def _write(self, path: Path) -> bool:
        owner = json.dumps(here() | {"machine": _machine(), "worker": self.name})
        for attempt in range(5):
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return write_once(path, owner)
            except CannotWrite:
                if attempt == 4:
                    raise
        raise AssertionError  # a leaving worker removes empty folders, but cannot do so between the calls every time

    def _remove(self, path: Path) -> None:
        self._touched.discard(path)
        mark = _read(path)
        if mark is not None and mark.owner.get("worker") == self.name:  # else it had expired, and is another's now
            with suppress(OSError):
                path.unlink()

    def _beat(self) -> None:
        while not self._over.wait(expires_after() / _BEATS):
            for path in list(self._touched):
                with suppress(OSError):  # had expired, or the file system does not answer: the next beat tries again
                    os.utime(path)


def living(folder: Path, clock: Path) -> list[str]:
    """The hosts of the live workers of a folder; `clock` is a file in it that may be touched."""
    marks = [_read(path) for path in sorted((folder / SHARED / WORKERS).glob("*.json"))]
    now = _touch(clock) if marks else 0.0
    return [str(mark.owner.get("host", "another machine")) for mark in marks if mark and not mark.has_expired(now)]


def here() -> dict[str, Any]:
    """This process and its machine, for people to read."""
    return {"process": os.getpid(), "host": socket.gethostname()}


@cache
def _machine() -> str:
    """Identifies a scope in which process ids are comparable: each container on a machine counts its own."""
    words = [socket.gethostname()]
    with suppress(OSError):
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip())
        words.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(words)


def _is_running(process: Any) -> bool:
    if not isinstance(process, int) or process <= 0 or os.name != "posix":
        return True  # unknown: if it is dead, its file will expire
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs, but belongs to another user
        return True
    return True


def _read(path: Path) -> _Mark | None:
    """None if there is no file. It is opened, because NFS refreshes its time only then."""
    try:
        with open(path, "rb") as file:
            touched, content = os.fstat(file.fileno()).st_mtime, file.read()
    except OSError:
        return None
    with suppress(ValueError):
        owner = json.loads(content)
        if isinstance(owner, dict):
            return _Mark(owner, touched)
    return _Mark({}, touched)


def _touch(path: Path) -> float:
    with suppress(OSError):
        os.utime(path)
        return path.stat().st_mtime
    return 0.0  # nothing expires while the file system does not answer


def _plain(name: str) -> str:
    """The name of a part as a file name."""
    return name.replace("/", "+")
