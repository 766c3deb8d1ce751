"""The program: runs a command, and tells what went wrong in one line."""

from __future__ import annotations

import sys
import traceback
from typing import NoReturn

import typer

from .._errors import AbbeError
from ._app import app
from ._invocation import FAILED, MISTAKE, STOPPED, current


def main() -> None:
    """Exit codes: 0 fine, 1 a verdict failed or a defect of abbe, 2 a user's mistake, 130 stopped by Ctrl-C."""
    current.reset()
    try:
        app()
    except SystemExit as stop:
        if stop.code == STOPPED:  # how typer ends after Ctrl-C
            _tell_stopped()
        raise
    except KeyboardInterrupt:
        _tell_stopped()
        sys.exit(STOPPED)
    except AbbeError as error:
        _fail(str(error), MISTAKE)
    except OSError as error:
        _fail(f"{error.strerror}: {error.filename}" if error.filename else _words(error), MISTAKE)
    except ImportError as error:
        again = "install abbe again, for example with pip install --upgrade --force-reinstall abbe"
        _fail(f"this installation is not complete ({_words(error)}): {again}", FAILED)
    except Exception as error:
        _fail(f"unexpected error, {type(error).__name__}: {_words(error)}; run again with --debug to see where", FAILED)


def _tell_stopped() -> None:
    typer.echo(f"abbe: stopped; {current.if_stopped}", err=True)


def _fail(line: str, code: int) -> NoReturn:
    """One line, or with --debug the whole traceback, which ends with the same words."""
    if current.debug:
        traceback.print_exc()
    else:
        typer.echo(f"abbe: {line}", err=True)
    sys.exit(code)


def _words(error: Exception) -> str:
    """Libraries below may say more than one line: the first one is the reason."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().partition("\n")[0] or type(error).__name__
