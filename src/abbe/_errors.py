"""The one exception that abbe raises for a user's mistake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class AbbeError(ValueError):
    """Invalid input: one line that names the argument, the value received and what is allowed.

    Examples:
        >>> abbe.normalizer("entmx")
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: unknown normalizer 'entmx'. Did you mean 'entmax'?
    """


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
