"""Generated tasks, and any text: what small transformers are trained on."""

from .make import TASKS, make_task
from .task import IGNORED, Batch, Task

__all__ = ["IGNORED", "TASKS", "Batch", "Task", "make_task"]
