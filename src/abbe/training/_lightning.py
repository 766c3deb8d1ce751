"""A monitor as a callback of Lightning's Trainer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .._errors import AbbeError

if TYPE_CHECKING:
    from ._monitor import Monitor

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def lightning_callback(monitor: Monitor) -> Any:
    """A `Callback` that drives the monitor; refused in one line where Lightning is not installed."""
    base = _callback_class()

    class MonitorCallback(base):  # type: ignore[misc, valid-type]
        """Reads on the optimizer steps that Lightning counts."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            monitor._begin(pl_module, trainer.global_step, monitor.folder)
            monitor._report_to([_logger(one) for one in trainer.loggers])
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


def _callback_class() -> Any:
    for name in _PACKAGES:
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise AbbeError("Monitor.lightning needs Lightning: pip install lightning")


def _logger(logger: Any) -> Any:
    return lambda metrics, step: logger.log_metrics(dict(metrics), step=step)
