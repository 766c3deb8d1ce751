"""Whether the compiled kernels are used: on, switched off by ABBE_KERNELS=off, or given up because they do not work.

Every kernel has a torch reference with the same signature, so only speed depends on them. Failures come from outside:
a numba that cannot be imported or cannot compile, a damaged cache of compiled code, no writable folder for that cache.
The first failure gives one warning; from then on the references are used.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from .._errors import AbbeError

VARIABLE = "ABBE_KERNELS"


class KernelsBrokenError(Exception):
    """Kernels do not work here; the warning was given, and the caller uses the reference."""


def _setting() -> bool:
    setting = os.environ.get(VARIABLE, "on").strip().lower()
    if setting not in ("on", "off"):
        raise AbbeError(f"{VARIABLE} must be on or off, got {setting!r}")
    return setting == "on"


_on = _setting()
_broken = False


def usable() -> bool:
    """Whether the kernels are switched on and have not failed so far."""
    return _on and not _broken


def usable_for(*tensors: Tensor) -> bool:
    """Whether kernels can take these tensors: all on the CPU, other devices use the references."""
    for tensor in tensors:  # a plain loop: torch.compile traces it
        if tensor.device.type != "cpu":
            return False
    return usable()


def switched_on() -> bool:
    return _on


@contextmanager
def loading() -> Iterator[None]:
    """Around all that imports, compiles or loads kernels: any failure becomes a KernelsBrokenError."""
    try:
        yield
    except KernelsBrokenError:
        raise
    except Exception as error:
        _give_up(error)
        raise KernelsBrokenError from error


def load(module: str, name: str) -> Any:
    with loading():
        return getattr(importlib.import_module(module), name)


def reason_of(error: Exception) -> str:
    """The first line of an error's message: compilers write many."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _give_up(error: Exception) -> None:
    global _broken
    if _broken:
        return
    _broken = True
    reason = reason_of(error)
    advice = (
        "set NUMBA_CACHE_DIR to a folder that you may write to"
        if "cannot cache function" in reason or isinstance(error, PermissionError)
        else "`abbe doctor` looks for the cause; an empty folder as NUMBA_CACHE_DIR avoids damaged files"
    )
    warnings.warn(
        f"abbe continues without its compiled kernels, more slowly: {reason} ({advice}; {VARIABLE}=off silences this)",
        RuntimeWarning,
        stacklevel=2,
    )
