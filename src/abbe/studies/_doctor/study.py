"""doctor: every check of this installation, in the order in which a user would act on them."""

from __future__ import annotations

from collections.abc import Callable

from . import machine, packages
from .check import Check

# By the name of their line. The functions are looked up when they are called, so that tests can replace them.
CHECKS: tuple[tuple[str, Callable[[], Check | list[Check]]], ...] = (
    ("Python", lambda: packages.python_check()),
    ("packages", lambda: packages.package_checks()),
    ("kernels", lambda: machine.kernels_check()),
    ("threads", lambda: machine.threads_check()),
    ("memory", lambda: machine.memory_check()),
    ("embedded model", lambda: machine.embedded_check()),
    ("cache", lambda: machine.cache_check()),
)


def doctor() -> list[Check]:
    """Is this installation complete, and can it work on this machine?

    Returns:
        All checks: each is ok, or says what to do.

    Examples:
        >>> [check.name for check in abbe.doctor() if check.failed]
        []
    """
    return [check for name, look in CHECKS for check in _checked(name, look)]


def _checked(name: str, look: Callable[[], Check | list[Check]]) -> list[Check]:
    """A check that crashes is a result, too, and must not hide the others."""
    try:
        checks = look()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        return [Check(name, "broken", reason, "this part does not work: install abbe again")]
    return checks if isinstance(checks, list) else [checks]
