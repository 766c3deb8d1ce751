"""The program: runs a command, and reports errors in one line."""

from __future__ import annotations

import math
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

from .._errors import AbbeError
from .._files import CannotWrite
from .._lazy import MissingExtraError
from ._app import app
from ._options import FAILED, MISTAKE, PIPE_CLOSED, STOPPED, current

_PATIENCE = 2.0  # seconds that cleaning up may take before another Ctrl-C interrupts it
_ENDED = {128 + number: number for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))}


def main() -> None:
    """Exit codes: 0 fine, 1 a verdict failed or a defect of abbe, 2 a user's mistake, 130 stopped by Ctrl-C.

    SIGTERM (143) and a closed terminal (129) stop it like Ctrl-C; 141 if nobody reads its output any more.
    """
    current.reset()
    try:
        with _ending():
            app()
    except SystemExit as stop:
        if stop.code == STOPPED or stop.code in _ENDED:  # how typer ends after Ctrl-C, and `_end`
            _say_stopped()
        if isinstance(stop.__context__, BrokenPipeError):  # typer and rich end with 1 then
            sys.exit(PIPE_CLOSED)
        raise
    except KeyboardInterrupt:
        _say_stopped()
        sys.exit(STOPPED)
    except CannotWrite as error:
        _fail(f"{error}; {current.if_stopped}", MISTAKE)
    except MissingExtraError as error:
        _fail(str(error), MISTAKE, prefix="")  # begins with the command
    except AbbeError as error:
        _fail(str(error), MISTAKE)
    except OSError as error:
        _fail(f"{error.strerror}: {error.filename}" if error.filename else _words(error), MISTAKE)
    except ImportError as error:
        again = "install abbe again, for example with pip install --upgrade --force-reinstall abbe"
        _fail(f"this installation is not complete ({_words(error)}): {again}", FAILED)
    except Exception as error:
        _fail(f"unexpected error, {type(error).__name__}: {_words(error)}; run again with --debug to see where", FAILED)


@contextmanager
def _ending() -> Iterator[None]:
    """Clean up after signals that end the program; one that its caller ignores, as under nohup, stays ignored."""
    before = {number: signal.getsignal(number) for number in set(_ENDED.values())}
    changed = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    for number in changed:
        signal.signal(number, _end)
    if interruptible := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if interruptible:
            # Ignored until the process is gone: while Python shuts down, the default would kill it.
            stopped = current.interrupted > -math.inf
            signal.signal(signal.SIGINT, signal.SIG_IGN if stopped else signal.default_int_handler)
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(*_: object) -> None:
    """Python's own handler, but a second Ctrl-C changes nothing while the first is being handled.

    Only for a time: a library may have swallowed the first.
    """
    now = time.monotonic()
    if now - current.interrupted > _PATIENCE:
        current.interrupted = now
        raise KeyboardInterrupt


def _end(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _say_stopped() -> None:
    typer.echo(f"abbe: stopped; {current.if_stopped}", err=True)


def _fail(line: str, code: int, prefix: str = "abbe: ") -> NoReturn:
    """Print one line, or with --debug the traceback, which ends with the same words."""
    if current.debug:
        traceback.print_exc()
    else:
        typer.echo(f"{prefix}{line}", err=True)
    sys.exit(code)


def _words(error: Exception) -> str:
    """Errors of libraries may have several lines: the first one is the reason."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().partition("\n")[0] or type(error).__name__
