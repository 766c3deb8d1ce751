"""Generated tasks, and any text: what small transformers are trained on."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ...._errors import AbbeError
from ....models import Text, read_text
from .maximum import Maximum
from .recall import Mqar, Recall
from .task import Batch, Task
from .text import NextCharacter

__all__ = ["TASKS", "Batch", "Task", "make_task"]
TASKS: dict[str, type[Task]] = {task.name: task for task in (Recall, Mqar, Maximum, NextCharacter)}


def make_task(name: str, sizes: Mapping[str, Any] | None = None, text: Text | None = None) -> Task:
    """One of `TASKS`, with the given sizes in place of the usual ones."""
    if name not in TASKS:
        raise AbbeError(f"there is no task {name!r}: choose one of {', '.join(TASKS)}")
    arguments = dict(sizes or {})
    if name == NextCharacter.name:
        arguments["text"] = read_text(None) if text is None else text
    unknown = [size for size in arguments if size not in inspect.signature(TASKS[name]).parameters]
    if unknown:
        raise AbbeError(f"task {name} has no size {', '.join(unknown)}: leave it out")
    return TASKS[name](**arguments)
