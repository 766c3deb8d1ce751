"""Which targets of a window are scored: every next token, or only the last N of each window.

Early queries see few keys, and a query that sees at most N of them loses nothing by keeping N: the mean over all
targets rises less than over the last ones, whose queries see nearly the whole window. arXiv 2609.37879 scores the last
128 targets at every length to make lengths comparable.
"""

from __future__ import annotations

from ..._errors import AbbeError

ALL = "all"
_LAST = "last:"


def last_targets(targets: str) -> int | None:
    """128 of "last:128", None of "all"."""
    if targets == ALL:
        return None
    number = targets.removeprefix(_LAST) if isinstance(targets, str) and targets.startswith(_LAST) else ""
    if not (number.isascii() and number.isdigit() and int(number) >= 1):
        raise AbbeError(
            f"targets is {targets!r}, but must be all, or last:N with a whole number N >= 1, such as last:128"
        )
    return int(number)


def check_targets(targets: str, length: int) -> None:
    """A window has one target fewer than tokens: nothing precedes its first token."""
    last = last_targets(targets)
    if last is not None and last > length - 1:
        raise AbbeError(
            f"targets is {targets!r}, but windows of {length} tokens have only {length - 1} targets: name longer "
            "lengths, or fewer targets"
        )


def targets_words(targets: str) -> str:
    last = last_targets(targets)
    if last is None:
        return "all next tokens of each window"
    return "the last target of each window" if last == 1 else f"the last {last:,} targets of each window"
