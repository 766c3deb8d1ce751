"""One process at a time in a run folder, or any number of workers that share it: who comes too late is told why.

What is special: the lock is the kernel's (flock) on a file in the folder, so it ends with the process, however that
ends; the file only says who holds it. Workers may be on other machines, where such locks break: each has a file that it
touches while it lives (`_workers`). Both sides first leave their mark and then look for that of the other, so that of a
run and a worker that begin at once at least one is refused.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ._errors import AbbeError
from ._workers import Alive, living

fcntl: Any
try:
    import fcntl
except ImportError:  # not a POSIX system: folders are not locked there
    fcntl = None

LOCK = ".lock"
_holders: dict[Path, tuple[int, int]] = {}  # process and thread: one that holds a folder may take it again further in
_shared: ContextVar[Path | None] = ContextVar("shared", default=None)  # the folder that this worker shares with others


@contextmanager
def held(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Hold a folder, which is made if it is not there, and taken away again if it stays empty."""
    path = Path(os.path.realpath(folder)) if folder is not None else None
    me = os.getpid(), threading.get_ident()
    if folder is None or path is None or _holders.get(path) == me:
        yield
        return
    with _made(Path(folder)):
        if _is_shared(path):
            yield
            return
        lock = _taken(path, Path(folder))
        try:
            _refuse_beside_workers(path, Path(folder))
            _holders[path] = me
            try:
                yield
            finally:
                del _holders[path]
        finally:
            with suppress(OSError):
                (path / LOCK).unlink()  # before it is given free: who waits for this file finds that it is gone
            os.close(lock)


@contextmanager
def shared(folder: str | os.PathLike[str]) -> Iterator[Alive]:
    """Join the workers of a folder; within, `held` takes this folder, and those in it, without a lock."""
    path = Path(os.path.realpath(folder))
    with _made(Path(folder)), Alive(path) as alive:
        _refuse_beside_run(path, Path(folder))
        before = _shared.set(path)
        try:
            yield alive
        finally:
            _shared.reset(before)


def _is_shared(path: Path) -> bool:
    folder = _shared.get()
    return folder is not None and path.is_relative_to(folder)


def _refuse_beside_workers(path: Path, shown: Path) -> None:
    """Called by who holds the lock."""
    others = living(path, path / LOCK)
    if others:
        raise AbbeError(
            f"{shown} is shared by {len(others)} worker{'s' if len(others) > 1 else ''}, the first on {others[0]}: "
            "wait until they are done, join them (--shard), or name another folder (--out)"
        )


def _refuse_beside_run(path: Path, shown: Path) -> None:
    """Called by a worker that has left its mark."""
    try:
        lock = os.open(path / LOCK, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except OSError:  # nobody has locked it
        return
    try:
        _lock(lock, alone=False)  # two workers that look at a file left behind do not refuse each other
    except BlockingIOError:
        raise AbbeError(
            f"{shown} is in use by {_holder(path)}, which does not share it: wait until it is done, "
            "or name another folder (--out)"
        ) from None
    finally:
        os.close(lock)


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder that is not there, and take it away again if it stays empty."""
    made = _make(folder)
    try:
        yield
    finally:
        with suppress(OSError):
            for one in reversed(made):
                one.rmdir()  # fails where something is in it


def _make(folder: Path) -> list[Path]:
    """The folders that were not there, the outermost first."""
    if folder.exists() and not folder.is_dir():
        raise AbbeError(f"{folder} is a file: name a folder for the run")
    missing = [one for one in (*reversed(folder.parents), folder) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AbbeError(f"cannot make the run folder {folder}: {error.strerror}") from None
    return missing


def _taken(path: Path, shown: Path) -> int:
    """The open file of the lock."""
    while True:
        try:
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise AbbeError(f"cannot write in the run folder {shown}: {error.strerror}") from None
        try:
            _lock(lock)
        except BlockingIOError:
            os.close(lock)
            raise AbbeError(
                f"{shown} is in use by {_holder(path)}: wait until it is done, or name another folder (--out)"
            ) from None
        if _is_there(path, lock):
            break
        os.close(lock)  # its holder took it away between the two calls
    with suppress(OSError):  # a full disk is reported when a result is written
        os.ftruncate(lock, 0)
        os.write(lock, json.dumps(_me()).encode())
    return lock


def _lock(file: int, alone: bool = True) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks: goes on without
        return


def _is_there(path: Path, lock: int) -> bool:
    try:
        return os.path.samestat(os.stat(path / LOCK), os.fstat(lock))
    except FileNotFoundError:
        return False


def _me() -> dict[str, Any]:
    since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    return {"process": os.getpid(), "host": socket.gethostname(), "since": since}


def _holder(path: Path) -> str:
    for _ in range(20):  # it may not have written yet
        with suppress(OSError, ValueError, KeyError, TypeError):
            who = json.loads((path / LOCK).read_bytes())
            return f"process {who['process']} on {who['host']} since {who['since']}"
        time.sleep(0.01)
    return "another process"
