"""Keep the libraries below quiet while they work, and tell their errors in one line."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module

from ..._errors import AbbeError


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, no advice, no warnings inside; all settings come back at the end."""
    with ExitStack() as restore, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _silence_hub(restore)
        _silence_transformers(restore)
        yield


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """An error of the libraries below becomes one of ours: `what` failed, and the first line of their reason."""
    try:
        yield
    except (AbbeError, MemoryError):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise AbbeError(f"{what}: {reason}") from error


def _silence_hub(restore: ExitStack) -> None:
    hub = import_module("huggingface_hub.utils")
    restore.callback(hub.logging.set_verbosity, hub.logging.get_verbosity())
    hub.logging.set_verbosity(logging.CRITICAL)
    restore.callback(hub.disable_progress_bars if hub.are_progress_bars_disabled() else hub.enable_progress_bars)
    hub.disable_progress_bars()


def _silence_transformers(restore: ExitStack) -> None:
    settings = import_module("transformers.utils.logging")
    restore.callback(settings.set_verbosity, settings.get_verbosity())
    settings.set_verbosity(logging.CRITICAL)
    shown = settings.is_progress_bar_enabled()
    restore.callback(settings.enable_progress_bar if shown else settings.disable_progress_bar)
    settings.disable_progress_bar()
