"""Tasks by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...._errors import AbbeError
from ....models import Text, read_text
from .maximum import Maximum
from .recall import Mqar, Recall
from .task import Task
from .text import NextCharacter

TASKS: dict[str, type[Task]] = {one.name: one for one in (Recall, Mqar, Maximum, NextCharacter)}


def make_task(name: str, sizes: Mapping[str, Any] | None = None, text: Text | None = None) -> Task:
    """One of `TASKS`, with sizes other than its usual ones."""
    if name not in TASKS:
        raise AbbeError(f"there is no task {name!r}: choose one of {', '.join(TASKS)}")
    given = dict(sizes or {})
    if name == NextCharacter.name:
        given["text"] = read_text(None) if text is None else text
    try:
        return TASKS[name](**given)
    except TypeError:
        raise AbbeError(f"task {name} has no size {', '.join(given)}") from None
