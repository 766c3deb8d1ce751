"""The one exception that abbe raises for a user's mistake."""

from __future__ import annotations


class AbbeError(ValueError):
    """Bad input: one line that names the argument, what came and what is allowed."""
