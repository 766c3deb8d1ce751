"""doctor: what this installation has, what it lacks, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable

from . import files, machine, packages
from .check import Check

Found = Check | list[Check] | None

CHECKS: tuple[tuple[str, Callable[[], Found]], ...] = (
    ("Python", lambda: packages.python_check()),
    ("abbe", lambda: packages.abbe_check()),
    ("packages", lambda: packages.package_checks()),
    ("processor", lambda: machine.processor_check()),
    ("threads", lambda: machine.threads_check()),
    ("kernels", lambda: machine.vectors_check()),
    ("memory", lambda: machine.memory_check()),
    ("CUDA or ROCm", lambda: machine.cuda_check()),
    ("MPS", lambda: machine.mps_check()),
    ("embedded model", lambda: files.embedded_check()),
    ("cache of models", lambda: files.cache_check()),
    ("pulled models", lambda: files.pulled_checks()),
    ("cache of kernels", lambda: files.kernel_cache_check()),
    ("browser for --open", lambda: files.opening_check()),
    ("chromium for tests", lambda: files.chromium_check()),
)


def doctor() -> list[Check]:
    """All checks, those of one group together.

    Example:
        >>> [check.name for check in doctor() if check.failed]
        []
    """
    found = [check for name, look in CHECKS for check in _looked(name, look)]
    groups = list(dict.fromkeys(check.group for check in found if check.needed))
    groups += [group for group in dict.fromkeys(check.group for check in found) if group not in groups]
    return sorted(found, key=lambda check: groups.index(check.group))


def _looked(name: str, look: Callable[[], Found]) -> list[Check]:
    """A check that fails itself is a finding, too, and must not hide the others."""
    try:
        found = look()
    except Exception as error:
        told = f"{type(error).__name__}: {error}".partition("\n")[0]
        return [Check(name, "broken", told, "this part does not work: install abbe again", "Not checked")]
    return found if isinstance(found, list) else [found] if found is not None else []
