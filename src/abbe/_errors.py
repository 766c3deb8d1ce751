"""The one exception that abbe raises for a user's mistake."""

from __future__ import annotations


class AbbeError(ValueError):
    """Invalid input: one line that names the argument, the value received and what is allowed.

    Examples:
        >>> abbe.normalizer("entmx")
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: unknown normalizer 'entmx'. Did you mean 'entmax'?
    """
