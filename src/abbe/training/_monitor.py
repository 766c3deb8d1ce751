"""Monitor: the attention of a model while it is trained, read from the real batches.

What is special: on the steps that are read, the monitor listens to the forward and backward passes in progress, with
the attention functions that the model was configured with; on all others the model is as if there were no monitor.
Training gives the same result with and without, bit by bit, and no error of the monitor ends a run.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from torch import Tensor
from transformers.trainer_callback import TrainerCallback

from .._arguments import several, shown, whole, yes_or_no
from .._errors import AbbeError
from ..measures import State, checked_grid
from ..models import Listener
from ._alerts import Alert, Alerts, summary
from ._quantities import Values, tracker_metrics, values_as_json, values_from_json
from ._reading import StepReading, values_of
from ._record import Record, free_folder, last_folder, manifest_of
from ._result import Training
from ._trainers import OwnWriter, Tracker, lightning_callback, log_to, make_trackers, reporters

_log = logging.getLogger("abbe")
# The monitor of each network; this keeps neither alive.
_monitored: weakref.WeakKeyDictionary[Any, weakref.ref[Monitor]] = weakref.WeakKeyDictionary()


class Monitor(TrainerCallback):
    """Reads the attention of a model on every `every`-th training step (and on the first).

    Give it to transformers' Trainer as a callback, to Lightning's as `monitor.lightning()`, or call `step` after every
    optimizer step of a loop. In a distributed run every rank creates one; rank 0 writes.

    Args:
        model: the model; a Trainer brings its own.
        every: steps from one reading to the next, >= 1.
        folder: where the run is kept, for `abbe.open`; by default a plain loop keeps it in memory, and Trainer in
            `abbe` within its output folder.
        rows: query rows of every sequence that are read, >= 1.
        sizes: sizes N of the selected sets whose separability is measured.
        alerts: whether rules are checked (`abbe.training.list_rules()`).
        on_alert: "stop", or a function that is called with each `Alert` on rank 0; its exceptions are passed on.
        trackers: where else the numbers go: a SummaryWriter, a run of wandb or trackio, a tqdm bar, a function of
            (metrics, step), "tensorboard:DIR", "wandb", "trackio" or "mlflow" (their active run); or a list of these.
        seed: of the rows and random sets; no global random number is ever drawn.
        resume: the step of the checkpoint from which a loop resumes. Trainer knows it.

    Attributes:
        steps_done: optimizer steps so far.
        should_stop: whether an alert wants training to stop.
        silent: why measuring has stopped, or None.

    Examples:
        >>> model = abbe.load("embedded").network.train().requires_grad_(True)
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        >>> with abbe.Monitor(model, every=2, folder="run") as monitor:
        ...     for tokens in torch.randint(1000, (4, 2, 32)):
        ...         loss = model(input_ids=tokens, labels=tokens).loss
        ...         loss.backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        ...         monitor.step(loss)
        >>> abbe.open("run").steps["step"].to_list()
        [1, 2, 4]
    """

    def __init__(
        self,
        model: object = None,
        *,
        every: int = 50,
        folder: str | os.PathLike[str] | None = None,
        rows: int = 8,
        sizes: int | tuple[int, ...] = (20,),
        alerts: bool = True,
        on_alert: Literal["stop"] | Callable[[Alert], object] | None = None,
        trackers: object = None,
        seed: int = 0,
        resume: int | None = None,
    ) -> None:
        self.every, self.rows = whole("every", every, least=1), whole("rows", rows, least=1)
        self.sizes = checked_grid(several("sizes", sizes))
        self.seed = whole("seed", seed, least=0, most=2**63 - 1)
        self.folder = folder
        if on_alert not in (None, "stop") and not callable(on_alert):
            raise AbbeError(f"on_alert is {shown(on_alert)}, but must be 'stop' or a function of an alert")
        self._on_alert, self._wants_alerts = on_alert, yes_or_no("alerts", alerts)
        self._trackers = make_trackers(trackers)
        self._reporters: list[Tracker] = []  # of a Trainer
        self._rate: float | None = None  # of the step in progress, from a Trainer
        self._spread = False  # whether the loss that the model computes is over the tokens of all ranks
        self.steps_done = 0 if resume is None else whole("resume", resume, least=0)
        self.should_stop = False
        self.silent: str | None = None
        self._listener: Listener | None = None
        self._record: Record | None = None
        self._reading: StepReading | None = None
        self._alerts = Alerts()
        self._started = time.perf_counter()
        self._loss_sum: Any = 0.0  # since the last step that was read; fetched from the device on such steps only
        self._losses = 0
        self._checked = False
        if model is not None:
            self._begin(model, self.steps_done, folder)
            self._prepare()

    def step(self, loss: Tensor | float | None = None, lr: float | None = None) -> None:
        """An optimizer step was done; call it after `optimizer.step()`.

        Args:
            loss: of the step.
            lr: learning rate of the step.
        """
        if self._listener is None and self.silent is None:
            raise AbbeError("this monitor has no model: create it with one, Monitor(model, ...)")
        self._finish(loss, lr)
        self._prepare()

    def result(self) -> Training:
        """What was measured so far.

        Raises:
            AbbeError: the monitor has no model yet.
        """
        if self._record is None:
            raise AbbeError("this monitor has no model yet: nothing was measured")
        return Training(list(self._record.records), dict(self._record.manifest))

    def lightning(self) -> Any:
        """This monitor as a callback of Lightning's Trainer."""
        return lightning_callback(self)

    def close(self) -> None:
        """Release the model and the folder; closing twice does no harm."""
        if self._listener is not None:
            self._when_dropped()
            _monitored.pop(self._listener.network, None)
            self._listener, self._reading = None, None
        if self._record is not None:
            self._record.close()
        for tracker in self._trackers:
            if isinstance(tracker, OwnWriter):
                tracker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- What transformers' Trainer calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = self.folder
        if folder is None:
            output = Path(args.output_dir)
            folder = (state.global_step and last_folder(output)) or free_folder(output)
        self._begin(kwargs["model"], state.global_step, folder, bool(getattr(args, "torch_compile", False)))
        self._spread = bool(getattr(args, "average_tokens_across_devices", False))
        self._reporters = reporters(args, state, control, kwargs)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._prepare()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The scheduler has moved on when the step ends: this is the rate that the step uses.
        groups = getattr(kwargs.get("optimizer"), "param_groups", None)
        self._rate = float(groups[0]["lr"]) if groups else None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self._finish(None, self._rate)
        if self.should_stop:
            control.should_training_stop = True
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    # -- Steps

    def _begin(self, model: Any, done: int, folder: str | os.PathLike[str] | None, will_compile: bool = False) -> None:
        """Attach to a model that has this many steps behind it; errors of the user are raised here, before training."""
        self.close()
        listener = Listener(model)
        other = _monitored.get(listener.network)
        if other is not None and other() is not None:
            raise AbbeError(f"this {type(listener.network).__name__} has a monitor already: close it first")
        self.steps_done, self.should_stop, self.silent, self._checked = done, False, None, False
        settings = {"every": self.every, "rows": self.rows, "sizes": list(self.sizes), "seed": self.seed}
        manifest = manifest_of(listener.network, settings, listener.skipped)
        manifest["settings"]["alerts"] = self._wants_alerts  # not in the identity: a resumed run may change it
        self._record = Record(folder if rank() == 0 else None, manifest, done)
        self._listener, self._started = listener, time.perf_counter()
        _monitored[listener.network] = weakref.ref(self)
        # A monitor that is garbage-collected leaves the model plain.
        self._when_dropped = weakref.finalize(self, listener.close)
        self._when_dropped.atexit = False
        self._alerts = Alerts()
        for record in self._record.records:  # so that events before a checkpoint are not raised again
            self._alerts.check(record["step"], values_from_json(record), record["loss"])
        if will_compile or listener.compiled:
            self._say("the model is compiled: on the steps that are read it runs eagerly, whose rounding may differ")

    def _prepare(self) -> None:
        """Listen if the next step is to be read."""
        if self._listener is None or self.silent is not None or self._reading is not None:
            return
        step = self.steps_done + 1
        if step == 1 or step % self.every == 0:
            try:
                self._reading = StepReading(
                    step, rows=self.rows, sizes=self.sizes, seed=self.seed, keep=rank() == 0, check=not self._checked
                )
                self._listener.open(self._reading)
            except Exception as error:
                self._reading = None
                self._silence(error)

    def _finish(self, loss: Any, lr: float | None) -> None:
        """A step is over; if it was read, its numbers are computed, checked for alerts, recorded and logged."""
        self.steps_done += 1
        if loss is not None:
            self._loss_sum = self._loss_sum + (loss.detach() if isinstance(loss, Tensor) else float(loss))
            self._losses += 1
        if self._reading is None:
            return
        reading, self._reading = self._reading, None
        try:
            events = self._numbers_of(reading, loss, lr)
        except Interrupted:
            return  # the loop has handled the exception: the next step that is due is read again
        except Exception as error:
            self._silence(reading.failure or error)
            return
        finally:
            if self._listener is not None:
                self._listener.close()
        if events and self._on_alert == "stop":
            self.should_stop = True
        elif callable(self._on_alert) and rank() == 0:
            for event in events:
                self._on_alert(event)

    def _numbers_of(self, reading: StepReading, loss: Any, lr: float | None) -> list[Alert]:
        assert self._listener is not None
        assert self._record is not None
        begun = time.perf_counter()
        states: dict[int, State] | None = None
        try:
            states = reading.finish(self._listener)
            if not reading.passes:
                name = type(self._listener.network).__name__
                raise AbbeError(
                    f"no backward pass went through this {name}: does the loop train this very model, and call step "
                    "after loss.backward()?"
                )
            if not states:
                raise AbbeError("no attention layer was seen in the forward pass")
        except Exception as error:
            reading.failure = reading.failure or error
            states = None
        device = next(self._listener.network.parameters()).device
        own_loss = reading.loss(loss)
        if own_loss is not None and loss is None and reading.summed and self._spread:
            own_loss *= world()  # each rank's loss is its part of one sum
        # Every rank comes here, even one whose reading failed.
        states, mean_loss = over_ranks(states, own_loss, device, reading.interrupted)
        values = values_of(states)
        events = self._alerts.check(self.steps_done, values, mean_loss) if self._wants_alerts else []
        if rank() == 0:
            now = time.perf_counter()
            loss_mean = float(self._loss_sum) / self._losses if self._losses else mean_loss
            self._loss_sum, self._losses = 0.0, 0
            record = {
                "step": self.steps_done,
                "loss": mean_loss,
                "loss_mean": loss_mean,
                "learning_rate": None if lr is None else float(lr),
                "seconds": round(now - self._started, 3),
                "read_seconds": round(now - begun + reading.seconds, 4),
                **values_as_json(values),
                "alerts": [asdict(event) for event in events],
            }
            self._record.add(record)
            facts: dict[str, Any] = {"layers": self._listener.names}
            if not self._checked and reading.error is None:
                facts["self_check"] = {"error": None, "why": "dropout of the weights makes outputs random"}
            elif not self._checked:
                facts["self_check"] = {"error": float(f"{reading.error:.3g}")}
            self._checked = True
            self._record.update(**facts)
            self._log(values, events)
        return events

    def _log(self, values: Values, events: list[Alert]) -> None:
        for line in summary(events):
            self._say(line)
        metrics = tracker_metrics(values)
        self._trackers = log_to(self._trackers, metrics, self.steps_done, self._say)
        self._reporters = log_to(self._reporters, metrics, self.steps_done, self._say)

    def _silence(self, error: Exception) -> None:
        """Report the error once, and let the training run continue without a monitor."""
        why = " ".join(str(error).split()) or type(error).__name__
        self.silent = why if isinstance(error, AbbeError) else f"{type(error).__name__}: {why}"
        self._say(f"the monitor stopped measuring at step {self.steps_done:,}: {self.silent}; training goes on")
        if self._listener is not None:
            self._listener.close()
        try:
            if self._record is not None:
                skipped = [*self._record.manifest["skipped"], f"from step {self.steps_done:,} on: {self.silent}"]
                self._record.update(skipped=skipped)
        except Exception:  # a full disk may be the very reason
            self._say("the reason could not be written to the run folder either")

    def _say(self, line: str) -> None:
        if rank() == 0:
            _log.warning("abbe.Monitor: %s", line)


# -- Ranks ------------------------------------------------------------------------------------------------------------
#
# Sums over all processes of a distributed run, once per step that is read and outside of all hooks. Every rank takes
# part in every exchange, even if its reading failed: it says so in the first, small exchange, and all ranks stop
# measuring together. No rank ever waits for one that has stopped measuring.

States = dict[int, State]
_INTERRUPTED = 0.5  # between failed, 0, and ready, 1: the least over the ranks holds for all


def world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


class Interrupted(Exception):
    """A pass of this step ended with an exception, here or on another rank: its numbers would be incomplete."""


def over_ranks(
    states: States | None, loss: float | None, device: torch.device, interrupted: bool = False
) -> tuple[States, float | None]:
    """The sums of all ranks, and their mean loss; `states` is None if the reading of this rank failed."""
    double = partial(torch.tensor, dtype=torch.float64)
    places = [(layer, name) for layer, state in (states or {}).items() for name in sorted(state)]
    shapes = [(*place, tuple(states[place[0]][place[1]].shape)) for place in places] if states else []
    layout = float(zlib.crc32(repr(shapes).encode()))
    ready = _INTERRUPTED if interrupted else float(states is not None)
    all_ready, least, largest = _over_ranks([double([ready, layout, -layout])], "MIN", device)[0].tolist()
    if all_ready == _INTERRUPTED:
        raise Interrupted
    if states is None or not all_ready:
        raise AbbeError("the reading failed on a rank" if ready else "the reading failed")
    if least != -largest:
        raise AbbeError("the ranks have read different layers")
    states = {layer: {name: x.cpu().double() for name, x in state.items()} for layer, state in states.items()}
    for how in ("MAX", "SUM"):
        ours = [(layer, name) for layer, name in places if name.endswith("/largest") == (how == "MAX")]
        reduced = _over_ranks([states[layer][name] for layer, name in ours], how, device)
        for (layer, name), x in zip(ours, reduced, strict=True):
            # The loss of the joined batch is the mean of the ranks' losses, so a rank's gradient counts by 1/world.
            states[layer][name] = x / world() ** 2 if name.endswith("_gradient/squares") else x
    known = double([0.0 if loss is None else loss, float(loss is not None)])
    total, count = _over_ranks([known], "SUM", device)[0].tolist()
    return states, total / count if count else None


def _over_ranks(parts: Sequence[Tensor], how: Literal["MIN", "MAX", "SUM"], device: torch.device) -> Sequence[Tensor]:
    """These tensors of all ranks, reduced in one exchange; as they are if there is one rank."""
    if world() == 1 or not parts:
        return parts
    joined = torch.cat([part.reshape(-1) for part in parts]).to(device)
    dist.all_reduce(joined, getattr(dist.ReduceOp, how))
    pieces: Sequence[Tensor] = torch.split(joined.cpu(), [part.numel() for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]
