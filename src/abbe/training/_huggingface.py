"""The events of transformers' Trainer, and its reporters.

What is special: Trainer hands its callbacks neither the trainer nor the other callbacks, and runs reporters before the
callbacks of the user, so numbers added to `logs` reach no tracker. The monitor therefore finds the reporters through
the handler that calls it, and hands them its numbers by their own `on_log`.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from transformers.trainer_callback import CallbackHandler, TrainerCallback

from ._record import free_folder, last_folder
from ._trackers import Tracker


class TrainerEvents(TrainerCallback):
    """What Trainer calls; `Monitor` does the work."""

    folder: Any
    should_stop: bool
    _spread: bool

    @abstractmethod
    def _begin(self, model: Any, done: int, folder: Any) -> None: ...

    @abstractmethod
    def _prepare(self) -> None: ...

    @abstractmethod
    def _finish(self, loss: Any, lr: float | None) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _report_to(self, trackers: list[Tracker]) -> None: ...

    @abstractmethod
    def _say_compiled(self) -> None: ...

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = self.folder
        if folder is None:
            output = Path(args.output_dir)
            folder = (state.global_step and last_folder(output)) or free_folder(output)
        self._begin(kwargs["model"], state.global_step, folder)
        self._spread = bool(getattr(args, "average_tokens_across_devices", False))
        if getattr(args, "torch_compile", False):
            self._say_compiled()
        if (handler := _calling_handler()) is not None:
            self._report_to([_Reporter(one, args, state, control, kwargs) for one in _reporters(handler)])

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._prepare()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The scheduler has moved on when the step ends: this is the rate that the step uses.
        groups = getattr(kwargs.get("optimizer"), "param_groups", None)
        self._rate = float(groups[0]["lr"]) if groups else None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self._finish(None, getattr(self, "_rate", None))
        if self.should_stop:
            control.should_training_stop = True
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()


class _Reporter:
    """One of Trainer's own trackers."""

    def __init__(self, callback: Any, args: Any, state: Any, control: Any, kwargs: Mapping[str, Any]) -> None:
        self._callback, self._args, self._state, self._control = callback, args, state, control
        self._given = {name: kwargs.get(name) for name in ("model", "processing_class")}

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        self._callback.on_log(self._args, self._state, self._control, logs=dict(metrics), **self._given)


def _calling_handler() -> Any:
    """The handler of callbacks that is calling at the moment; None if it is somebody else."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        who = frame.f_locals.get("self")
        if isinstance(who, CallbackHandler):
            return who
        frame = frame.f_back
    return None


def _reporters(handler: Any) -> list[Any]:
    """The callbacks that write to trackers: those that transformers keeps among its integrations."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    kinds = tuple(kind for kind in INTEGRATION_TO_CALLBACK.values() if isinstance(kind, type))
    return [callback for callback in handler.callbacks if isinstance(callback, kinds)]
