"""One process at a time in a run folder: a second one gets an error that says who holds it."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from ._errors import AbbeError

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP)  # of a file system without locks: continue without one
LOCK, HOLDER = ".lock", ".lock.json"  # the lock of the system, which ends with its process; who holds it


@contextmanager
def held(folder: str | os.PathLike[str] | None, lock: str = LOCK) -> Iterator[None]:
    """Hold a folder; it is created if needed, and removed again if it stays empty. A holder may take it again."""
    if folder is None:
        yield
        return
    path = Path(folder)
    with _existing(path):
        # One object per file and thread (a singleton), which counts how often it is taken.
        mutex = FileLock(Path(os.path.realpath(path)) / lock, timeout=0, is_singleton=True)
        outermost = not mutex.is_locked
        try:
            mutex.acquire()
        except Timeout:
            raise AbbeError(
                f"{path} is in use by {_holder(path)}: wait until it is done, or name another folder (--out)"
            ) from None
        except OSError as error:
            if error.errno in _NO_LOCKS:
                yield
                return
            raise AbbeError(f"cannot write in the run folder {path}: {error.strerror}") from None
        try:
            if outermost and lock == LOCK:
                _sign(path)
            yield
        finally:
            if outermost:
                for name in (lock, HOLDER) if lock == LOCK else (lock,):
                    with suppress(OSError):
                        (path / name).unlink()
            mutex.release()


def _sign(path: Path) -> None:
    since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    with suppress(OSError):  # a full disk is reported when a result is written
        (path / HOLDER).write_text(json.dumps({"process": os.getpid(), "host": socket.gethostname(), "since": since}))


def _holder(path: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        holder = json.loads((path / HOLDER).read_bytes())
        return f"process {holder['process']} on {holder['host']} since {holder['since']}"
    return "another process"


@contextmanager
def _existing(folder: Path) -> Iterator[None]:
    if folder.exists() and not folder.is_dir():
        raise AbbeError(f"{folder} is a file: name a folder for the run")
    missing = [above for above in (folder, *folder.parents) if not above.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AbbeError(f"cannot make the run folder {folder}: {error.strerror}") from None
    try:
        yield
    finally:
        with suppress(OSError):
            for above in missing:
                above.rmdir()  # fails unless empty
