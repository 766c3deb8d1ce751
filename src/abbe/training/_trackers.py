"""Where measured numbers go besides the run folder: TensorBoard, wandb, trackio, mlflow, a progress bar, a function."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._arguments import shown
from .._errors import AbbeError

Tracker = Callable[[Mapping[str, float], int], object]  # metrics and step
_ALLOWED = (
    "a SummaryWriter, a run of wandb or trackio, a tqdm bar, a function of (metrics, step), 'tensorboard:DIR', "
    "'wandb', 'trackio' or 'mlflow'"
)
_LOG = {"wandb": "log", "trackio": "log", "mlflow": "log_metrics"}  # function of the module that logs to its active run
_IN_A_BAR = {
    "abbe/global/entropy_min": "H_min",
    "abbe/global/max_logit_max": "logit",
    "abbe/global/sink_mass_max": "sink",
}


def make_trackers(trackers: object) -> list[Tracker]:
    if trackers is None:
        return []
    return [_tracker(one) for one in (trackers if isinstance(trackers, (list, tuple)) else [trackers])]


def _tracker(target: Any) -> Tracker:
    if isinstance(target, str):
        return _named(target)
    if callable(getattr(target, "add_scalar", None)):
        return _to_writer(target)
    if callable(getattr(target, "set_postfix", None)):
        return lambda metrics, step: target.set_postfix(_postfix(metrics), refresh=False)
    if callable(getattr(target, "log", None)):
        return lambda metrics, step: target.log(dict(metrics), step=step)
    if callable(target):
        return lambda metrics, step: target(dict(metrics), step)
    raise AbbeError(f"trackers: {shown(target)} is not a tracker; allowed are {_ALLOWED}")


def _named(name: str) -> Tracker:
    kind, colon, place = name.partition(":")
    if kind == "tensorboard" and place:
        _import("tensorboard")
        return OwnWriter(place)
    if kind in _LOG and not colon:
        log = getattr(_import(kind), _LOG[kind])
        return lambda metrics, step: log(dict(metrics), step=step)
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
        self._writer: Any = None

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is None:
            self._writer = SummaryWriter(self._folder)
        _to_writer(self._writer)(metrics, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _to_writer(writer: Any) -> Tracker:
    def log(metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log


def _postfix(metrics: Mapping[str, float]) -> dict[str, str]:
    return {short: f"{metrics[name]:.3g}" for name, short in _IN_A_BAR.items() if name in metrics}


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
