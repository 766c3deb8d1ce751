"""Silence other libraries while they work, and report their errors in one line."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module

from ..._errors import AbbeError


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, advice or warnings inside; all settings are restored at the end."""
    with ExitStack() as restore, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hub, transformers = import_module("huggingface_hub.utils"), import_module("transformers.utils.logging")
        for settings in (hub.logging, transformers):
            restore.callback(settings.set_verbosity, settings.get_verbosity())
            settings.set_verbosity(logging.CRITICAL)
        restore.callback(hub.disable_progress_bars if hub.are_progress_bars_disabled() else hub.enable_progress_bars)
        hub.disable_progress_bars()
        enabled = transformers.is_progress_bar_enabled()
        restore.callback(transformers.enable_progress_bar if enabled else transformers.disable_progress_bar)
        transformers.disable_progress_bar()
        yield


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Turns an error of another library into an AbbeError: `what` failed, and the first line of the reason."""
    try:
        yield
    except (AbbeError, MemoryError):
        raise
    except Exception as error:
        raise AbbeError(f"{what}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
