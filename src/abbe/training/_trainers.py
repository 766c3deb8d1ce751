"""What a monitor is connected to: trackers that get its numbers, and the Trainers that drive it.

transformers' Trainer hands its callbacks neither the trainer nor the other callbacks, and runs reporters before the
user's callbacks, so numbers added to `logs` reach no tracker. The monitor therefore finds the reporters through the
handler that calls it, and passes its numbers to their `on_log`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import FrameType
from typing import Any

from transformers.trainer_callback import CallbackHandler

from .._arguments import shown
from .._errors import AbbeError

Tracker = Callable[[Mapping[str, float], int], object]  # metrics and step
_ALLOWED = (
    "a SummaryWriter, a run of wandb or trackio, a tqdm bar, a function of (metrics, step), 'tensorboard:DIR', "
    "'wandb', 'trackio' or 'mlflow'"
)
_LOG = {"wandb": "log", "trackio": "log", "mlflow": "log_metrics"}  # function of the module that logs to its active run
_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
_IN_A_BAR = {
    "abbe/global/entropy_min": "H_min",
    "abbe/global/max_logit_max": "logit",
    "abbe/global/sink_mass_max": "sink",
}


def make_trackers(trackers: object) -> list[Tracker]:
    if trackers is None:
        return []
    return [_tracker(target) for target in (trackers if isinstance(trackers, (list, tuple)) else [trackers])]


def _tracker(target: Any) -> Tracker:
    if isinstance(target, str):
        return _named(target)
    if callable(getattr(target, "add_scalar", None)):
        return _to_writer(target)
    if callable(getattr(target, "set_postfix", None)):
        return lambda metrics, step: target.set_postfix(
            {short: f"{metrics[name]:.3g}" for name, short in _IN_A_BAR.items() if name in metrics}, refresh=False
        )
    if callable(getattr(target, "log", None)):
        return _logging(target.log)
    if callable(target):
        return lambda metrics, step: target(dict(metrics), step)
    raise AbbeError(f"trackers: {shown(target)} is not a tracker; allowed are {_ALLOWED}")


def _logging(log: Callable[..., object]) -> Tracker:
    return lambda metrics, step: log(dict(metrics), step=step)


def _named(name: str) -> Tracker:
    kind, colon, folder = name.partition(":")
    if kind == "tensorboard" and folder:
        _import("tensorboard")
        return OwnWriter(folder)
    if kind in _LOG and not colon:
        return _logging(getattr(_import(kind), _LOG[kind]))
    raise AbbeError(f"trackers: unknown {name!r}; allowed are {_ALLOWED}")


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise AbbeError(f"trackers: {name} is not installed: pip install {name}") from None


class OwnWriter:
    """TensorBoard event files that the monitor writes itself, from its first numbers until it is closed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @cached_property
    def _writer(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter  # needs tensorboard

        return SummaryWriter(self._folder)

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        _to_writer(self._writer)(metrics, step)

    def close(self) -> None:
        if "_writer" in vars(self):  # a closed one opens a new file if it is used again
            self._writer.close()


def _to_writer(writer: Any) -> Tracker:
    def log(metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log


def log_to(
    trackers: Iterable[Tracker], metrics: Mapping[str, float], step: int, say: Callable[[str], object]
) -> list[Tracker]:
    """Pass the metrics to every tracker; one that fails is reported once and dropped."""
    working = []
    for tracker in trackers:
        try:
            tracker(metrics, step)
        except Exception as error:
            say(f"a tracker failed and gets no more numbers: {type(error).__name__}: {error}")
        else:
            working.append(tracker)
    return working


def reporters(args: Any, state: Any, control: Any, kwargs: Mapping[str, Any]) -> list[Tracker]:
    """Trainer's own trackers: the callbacks that transformers keeps among its integrations."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK  # slow to import

    kinds = tuple(kind for kind in INTEGRATION_TO_CALLBACK.values() if isinstance(kind, type))
    context = {name: kwargs.get(name) for name in ("model", "processing_class")}

    def tracker(callback: Any) -> Tracker:
        return lambda metrics, step: callback.on_log(args, state, control, logs=dict(metrics), **context)

    return [tracker(callback) for callback in _all_callbacks() if isinstance(callback, kinds)]


def _all_callbacks() -> list[Any]:
    """The callbacks of the handler that is calling now; none if something else calls."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if isinstance(handler := frame.f_locals.get("self"), CallbackHandler):
            return list(handler.callbacks)
        frame = frame.f_back
    return []


def lightning_callback(monitor: Any) -> Any:
    """A callback of Lightning that drives a `Monitor`."""

    class MonitorCallback(_lightning_base()):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            monitor._begin(pl_module, trainer.global_step, monitor.folder)
            monitor._reporters = [_logging(logger.log_metrics) for logger in trainer.loggers]
            monitor._prepare()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step > monitor.steps_done:  # else gradients are still being accumulated
                loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
                rate = trainer.optimizers[0].param_groups[0]["lr"] if trainer.optimizers else None
                monitor._finish(loss, rate)
                monitor._prepare()
            trainer.should_stop = trainer.should_stop or monitor.should_stop

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            monitor.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            monitor.close()

    return MonitorCallback()


def _lightning_base() -> Any:
    for name in _LIGHTNING:
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise AbbeError("Monitor.lightning needs Lightning: pip install lightning")
