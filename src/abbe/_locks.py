"""One process at a time in a run folder, or any number of workers that share it: a latecomer gets an error that says
who holds it.

What is special: the lock is the kernel's (flock) on a file in the folder, so it ends with the process, however that
ends; the file only names the holder. Workers may be on other machines, where such locks fail: each has a file that it
touches while it is alive (`_workers`). Both sides first leave their mark and then look for the other's, so that of a
run and a worker that start at the same time at least one is refused.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ._errors import AbbeError
from ._workers import Alive, here, living

fcntl: Any
try:
    import fcntl
except ImportError:  # not a POSIX system: folders are not locked there
    fcntl = None

LOCK = ".lock"
_holders: dict[Path, tuple[int, int]] = {}  # process and thread: the holder of a folder may take it again
_shared: ContextVar[Path | None] = ContextVar("shared", default=None)  # the folder that this worker shares with others


@contextmanager
def held(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Hold a folder; it is created if needed, and removed again if it stays empty."""
    path = Path(os.path.realpath(folder)) if folder is not None else None
    me = os.getpid(), threading.get_ident()
    if folder is None or path is None or _holders.get(path) == me:
        yield
        return
    with _existing(Path(folder)):
        shared_folder = _shared.get()
        if shared_folder is not None and path.is_relative_to(shared_folder):
            yield
            return
        lock = _acquire(path, Path(folder))
        try:
            _check_no_workers(path, Path(folder))
            _holders[path] = me
            try:
                yield
            finally:
                del _holders[path]
        finally:
            with suppress(OSError):
                (path / LOCK).unlink()  # before its release: a process that waits for this file sees that it is gone
            os.close(lock)


@contextmanager
def shared(folder: str | os.PathLike[str]) -> Iterator[Alive]:
    """Join the workers of a folder; inside, `held` takes this folder and its subfolders without a lock."""
    path = Path(os.path.realpath(folder))
    with _existing(Path(folder)), Alive(path) as alive:
        _check_no_run(path, Path(folder))
        before = _shared.set(path)
        try:
            yield alive
        finally:
            _shared.reset(before)


def _check_no_workers(path: Path, folder: Path) -> None:
    """Called by the holder of the lock."""
    others = living(path, path / LOCK)
    if others:
        raise AbbeError(
            f"{folder} is shared by {len(others)} worker{'s' if len(others) > 1 else ''}, the first on {others[0]}: "
            "wait until they are done, join them (--shard), or name another folder (--out)"
        )


def _check_no_run(path: Path, folder: Path) -> None:
    """Called by a worker that has left its mark."""
    try:
        lock = os.open(path / LOCK, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except OSError:  # not locked
        return
    try:
        _lock(lock, exclusive=False)  # two workers that check a stale lock file do not refuse each other
    except BlockingIOError:
        raise AbbeError(
            f"{folder} is in use by {_holder(path)}, which does not share it: wait until it is done, "
            "or name another folder (--out)"
        ) from None
    finally:
        os.close(lock)


@contextmanager
def _existing(folder: Path) -> Iterator[None]:
    """Create a folder if needed, and remove it again if it stays empty."""
    if folder.exists() and not folder.is_dir():
        raise AbbeError(f"{folder} is a file: name a folder for the run")
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AbbeError(f"cannot make the run folder {folder}: {error.strerror}") from None
    try:
        yield
    finally:
        with suppress(OSError):
            for one in missing:
                one.rmdir()  # fails unless empty


def _acquire(path: Path, folder: Path) -> int:
    """The lock as an open file."""
    while True:
        try:
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise AbbeError(f"cannot write in the run folder {folder}: {error.strerror}") from None
        try:
            _lock(lock)
        except BlockingIOError:
            os.close(lock)
            raise AbbeError(
                f"{folder} is in use by {_holder(path)}: wait until it is done, or name another folder (--out)"
            ) from None
        if _is_there(path, lock):
            break
        os.close(lock)  # its holder removed it between the two calls
    since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    with suppress(OSError):  # a full disk is reported when a result is written
        os.ftruncate(lock, 0)
        os.write(lock, json.dumps(here() | {"since": since}).encode())
    return lock


def _lock(file: int, exclusive: bool = True) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks: continue without one
        return


def _is_there(path: Path, lock: int) -> bool:
    try:
        return os.path.samestat(os.stat(path / LOCK), os.fstat(lock))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    for _ in range(20):  # it may not have written its name yet
        with suppress(OSError, ValueError, KeyError, TypeError):
            holder = json.loads((path / LOCK).read_bytes())
            return f"process {holder['process']} on {holder['host']} since {holder['since']}"
        time.sleep(0.01)
    return "another process"
