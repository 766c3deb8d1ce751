"""One training run: all seeds of one configuration, from untrained networks to accuracy on unseen data; and many.

At some steps the network is read: the quantities of the monitor, reduced over heads, for every seed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from .._tensors import where_double
from ..models import Text
from ..training import Alerts, LayerRows, Measured, Values, measure_layers, reduce_heads
from .network import Attention, AttentionSettings, Seen, Temperature, learns, temperature
from .optimizers import Factors, Optimizer, compensation
from .tasks import Batch, Task, make_task, stacked


@dataclass(frozen=True)
class Configuration:
    """One choice, trained with every seed.

    Attributes:
        temperature: in front of the normalizer, as text ("0.1", "learned", "geometric:1:0.1").
        compensated: the control: initial values and rate of the query map undo the temperature.
        cooldown: share of the run, at its end, over which the rate falls linearly to 0.
        trained_with: the normalizer during training, if `normalizer` is for inference only; "" for the same.
        readings: how many steps of the run are read, about evenly spread.
        precision: "float32" or "float64".
    """

    normalizer: str
    temperature: str
    optimizer: str
    rate: float
    seeds: tuple[int, ...]
    steps: int
    batch: int
    width: int
    heads: int
    qk_norm: bool = False
    compensated: bool = False
    decay: float = 0.0
    cooldown: float = 0.0
    trained_with: str = ""
    readings: int = 40
    test_size: int = 512
    precision: str = "float32"

    def rate_at(self, step: int) -> float:
        """The learning rate at this step, counted from 1."""
        left = (self.steps - step + 1) / (self.cooldown * self.steps + 1) if self.cooldown else 1.0
        return self.rate * min(1.0, left)

    @property
    def key(self) -> str:
        """The unique name of its part in the folder."""
        content = json.dumps(asdict(self), sort_keys=True)
        return f"runs/{hashlib.sha256(content.encode()).hexdigest()[:16]}"

    @property
    def label(self) -> str:
        """The words for a progress bar."""
        more = ", compensated" if self.compensated else ""
        return f"{self.normalizer}, T {self.temperature}, {self.optimizer} {self.rate:g}{more}"


def can_be_compensated(temperature: Temperature, qk_norm: bool) -> bool:
    """Whether the query map can absorb the temperature: it must be fixed. T = 1 needs no control; a norm undoes it."""
    return temperature.fixed and temperature.start != 1 and not qk_norm


_ITEMS_AT_ONCE = 1 << 19  # of a long test, per seed
_INNER = re.compile(r"\b(attention|perceptron)\..*weight$")  # matrices within layers, not what a normalizer learns
CPU = torch.device("cpu")


def train(
    task: Task, choice: Configuration, alive: Callable[[], None] = lambda: None, device: torch.device = CPU
) -> dict[str, Any]:
    """Train and test; returns the steps that were read, and by seed curves, alerts and accuracy.

    `alive` is called at every step, and may raise to end the run. Initial weights and data are drawn on the CPU, so
    that they are the same on every device.
    """
    started = time.perf_counter()
    run = _Run(task, choice, alive, device)
    for step in range(1, choice.steps + 1):
        alive()
        run.step(step)
    return run.content() | {"seconds": round(time.perf_counter() - started, 3)}


class _Run:
    def __init__(self, task: Task, choice: Configuration, alive: Callable[[], None], device: torch.device) -> None:
        self.task, self.choice, self.alive, self.device = task, choice, alive, device
        self.dtype: torch.dtype = getattr(torch, choice.precision)
        settings = AttentionSettings(
            choice.width, choice.heads, choice.trained_with or choice.normalizer, temperature(choice.temperature),
            choice.qk_norm, choice.compensated,
        )  # fmt: skip
        weights = [_generator(seed, "weights") for seed in choice.seeds]
        self.network = task.network(weights, settings).to(self.dtype).to(device)
        self.layers = attentions(self.network)
        self.optimizer = Optimizer(choice.optimizer, _groups(self.network, choice), choice.decay)
        self.data = [_generator(seed, "data") for seed in choice.seeds]
        self.lengths = _generator(0, "lengths")  # the same for all seeds, whichever are trained together
        self.read_at = reading_steps(choice.steps, choice.readings)
        self.steps: list[int] = []  # that were read
        self.seeds: list[dict[str, Any]] = [
            {"seed": seed, "losses": [], "quantities": {name: [] for name in QUANTITIES}, "alerts": {}, "lengths": {}}
            for seed in choice.seeds
        ]
        self._alerts = [Alerts() for _ in choice.seeds]
        self._since: list[Tensor] = []  # losses of the steps since the last reading

    def step(self, step: int) -> None:
        reads = step in self.read_at
        for part in self.layers:
            part.progress = (step - 1) / max(1, self.choice.steps - 1)
        length = self.task.training_length(self.lengths)
        batch = self._batch(self.data, self.choice.batch, length, held_out=False)
        watch(self.network, reads)
        losses = self._losses(batch)
        torch.autograd.backward(losses.sum())
        before = snapshot(self.network)
        self.optimizer.step(self.choice.rate_at(step))
        self._since.append(losses.detach())
        if reads:
            self._read(step, batch, before)
        for parameter in self.network.parameters():
            parameter.grad = None

    def _read(self, step: int, batch: Batch, before: list[Seen]) -> None:
        with torch.no_grad():
            self._losses(batch)  # the same rows after the update
        values = measure_seeds(self.layers, list(range(len(self.seeds))), step, before, snapshot(self.network))
        watch(self.network, False)
        self.steps.append(step)
        for seed, alerts, measured, loss in zip(self.seeds, self._alerts, values, self._mean_losses(), strict=True):
            seed.setdefault("start", loss)  # the first step is always read
            seed["losses"].append(_rounded(loss))
            for name, number in reduced(measured).items():
                seed["quantities"][name].append(number)
            for rule in sorted({event.rule for event in alerts.check(step, measured, loss)}):
                seed["alerts"].setdefault(rule, step)  # the first of its events

    def _mean_losses(self) -> list[float]:
        """Mean losses by seed, since the last reading."""
        # One copy per reading, since each waits for the device; summed in float64, which some devices lack.
        steps = torch.stack(self._since).cpu().double()
        self._since = []
        means: list[float] = (sum(steps.unbind(), torch.zeros_like(steps[0])) / len(steps)).tolist()
        return means

    def _batch(self, generators: list[torch.Generator], size: int, length: int | None, held_out: bool) -> Batch:
        batch = stacked([self.task.sample(seed, size, length, held_out=held_out) for seed in generators])
        inputs = tuple(x.to(self.dtype) if x.is_floating_point() else x for x in batch.inputs)
        return Batch(tuple(x.to(self.device) for x in inputs), batch.targets.to(self.device))

    def _losses(self, batch: Batch) -> Tensor:
        """Mean cross-entropy of each seed, in nats."""
        return _summed_losses(self.network(*batch.inputs), batch.targets) / batch.targets[0].numel()

    def content(self) -> dict[str, Any]:
        learned = [[part.normalizer_of(i) for part in self.layers] for i in range(len(self.seeds))]
        if self.choice.trained_with:
            for part in self.layers:
                part.use(self.choice.normalizer)
        for i, (seed, (accuracy, loss, _)) in enumerate(zip(self.seeds, self._test(None), strict=True)):
            seed["temperature"] = [_rounded(part.temperatures()[i]) for part in self.layers]
            seed["learned"] = [str(normalizer) for normalizer in learned[i] if learns(normalizer)]
            seed |= {"accuracy": accuracy, "loss": loss}
        for length in self.task.test_lengths:
            for seed, (accuracy, _, entropy) in zip(self.seeds, self._test(length), strict=True):
                seed["lengths"][str(length)] = [accuracy, entropy]
        return {"steps": self.steps, "seeds": self.seeds}

    @torch.no_grad()
    def _test(self, length: int | None) -> list[list[float | None]]:
        """Accuracy, loss and entropy of the weights (with a length) of every seed on data never trained on."""
        for part in self.layers:
            part.progress = 1.0
        generators = [_generator(seed, "test") for seed in self.choice.seeds]
        right, loss, entropy, questions = torch.zeros(4, len(generators), dtype=torch.float64)
        at_once = max(1, _ITEMS_AT_ONCE // ((length or 64) * self.choice.width))
        for start in range(0, self.choice.test_size, at_once):
            self.alive()
            size = min(at_once, self.choice.test_size - start)
            batch = self._batch(generators, size, length, held_out=True)
            scores, targets = self.network(*batch.inputs), batch.targets
            right += (scores.argmax(-1) == targets).flatten(1).sum(1).cpu()
            loss += _summed_losses(scores, targets).cpu()
            questions += targets[0].numel()
            if length is not None:
                (layer,) = self.layers  # tasks with lengths have one layer, and a question per example
                assert layer.entropy is not None
                entropy += layer.entropy.cpu().double().mean((2, 3)).sum(1)
        means = (torch.stack([right, loss, entropy]) / questions).T.tolist()
        return [[_rounded(x) for x in by_seed] for by_seed in means]


def _summed_losses(scores: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each seed, summed over its questions."""
    flat = nn.functional.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction="none")
    return flat.view(len(targets), -1).sum(1)


def reading_steps(steps: int, readings: int) -> frozenset[int]:
    """Half of them in the first tenth of the run, which decides it; always the first and the last step."""
    early = {round(1 + (steps / 10) * i / max(1, readings // 2)) for i in range(readings // 2)}
    late = {round(steps / 10 + 0.9 * steps * i / max(1, readings - readings // 2)) for i in range(1, readings)}
    return frozenset(min(max(1, step), steps) for step in early | late | {1, steps} if step <= steps)


def _groups(network: nn.Module, choice: Configuration) -> list[tuple[nn.Parameter, Factors, bool]]:
    undone = compensation(choice.optimizer, temperature(choice.temperature).start) if choice.compensated else Factors()
    queries = {id(part.query.weight) for part in attentions(network)}
    return [
        (x, undone if id(x) in queries else Factors(), x.dim() == 3 and _INNER.search(name) is not None)
        for name, x in network.named_parameters()
    ]


def _generator(seed: int, use: str) -> torch.Generator:
    """Weights, training data and test data of a seed come from separate streams.

    Hashed to 32 bits: torch's generator drops higher bits, so that an offset up there would change nothing.
    """
    digest = hashlib.sha256(f"abbe train, seed {seed}, {use}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))


def _rounded(x: float) -> float | None:
    return float(f"{x:.6g}") if math.isfinite(x) else None


# -- Readings ---------------------------------------------------------------------------------------------------------

SIZE = 4  # of the selected sets whose separability is measured: small tasks have few keys
_SEQUENCES, _ROWS = 4, 16  # read at most
# Name in the tables: name among the monitor's quantities, reduced over heads.
QUANTITIES = {
    "entropy_share": "entropy_share_mean",
    "max_logit": "max_logit_max",
    "logit_change": "logit_change_max",
    "max_weight": "max_weight_mean",
    "saturated": "saturated_mean",
    "separability": f"separability_{SIZE}_mean",
    "sensitivity": "sensitivity_worst_mean_mean",
    "gradient_ratio": "gradient_ratio_mean",
    "query_gradient": "query_gradient_mean",
    "nonfinite": "nonfinite_max",
    "separability_control": "separability_control_mean",
}


def attentions(network: nn.Module) -> list[Attention]:
    return [part for part in network.modules() if isinstance(part, Attention)]


def watch(network: nn.Module, on: bool) -> None:
    for part in attentions(network):
        part.watched, part.seen = on, None


def snapshot(network: nn.Module) -> list[Seen]:
    """What every attention layer computed in the last forward pass."""
    return [part.seen for part in attentions(network) if part.seen is not None]


def measure_seeds(
    layers: Sequence[Attention], seeds: Sequence[int], step: int, before: list[Seen], after: list[Seen]
) -> list[Values]:
    """Numbers by seed; seeds that share a normalizer are measured at once, as if they were heads."""
    if all(layer.normalizer_of(seed) is layer.normalizer_of(seeds[0]) for layer in layers for seed in seeds):
        rows = [_rows(layer, seeds, *seen) for layer, *seen in zip(layers, before, after, strict=True)]
        heads = layers[0].settings.heads
        try:
            together = measure_layers(rows, sizes=(SIZE,), step=step, alike=len(seeds))
        except AbbeError:  # weights that are not finite have no measures, but the other seeds do
            if len(seeds) == 1:
                return [{}]
        else:
            return [_part(together, slice(i * heads, (i + 1) * heads)) for i in range(len(seeds))]
    return [values for seed in seeds for values in measure_seeds(layers, [seed], step, before, after)]


def _part(values: Values, heads: slice) -> Values:
    return {
        name: Measured(**{x: grid and [layer[heads] for layer in grid] for x, grid in vars(measured).items()})
        for name, measured in values.items()
    }


def _rows(layer: Attention, seeds: Sequence[int], before: Seen, after: Seen) -> LayerRows:
    """Rows of all these seeds side by side: (batch, seed * head, query, ...)."""
    queries = before.logits.shape[-2]
    first = min(1, queries - 1)  # a causal first row sees one key, and every measure of one key is trivial
    rows = torch.linspace(first, queries - 1, min(_ROWS, queries - first)).round().long()  # none of them twice

    def as_heads(x: Tensor, sequences: int | None = _SEQUENCES) -> Tensor:
        return where_double(x[seeds, :sequences]).transpose(0, 1).flatten(1, 2)

    gradients = {
        name: as_heads(tensor.grad, None)
        for name, tensor in (("query", before.query), ("key", before.key), ("value", before.value))
        if tensor.grad is not None
    }
    logits = as_heads(before.logits)[:, :, rows]
    normalizer = layer.normalizer_of(seeds[0])
    if any(x.device != logits.device for x in (*normalizer.parameters(), *normalizer.buffers())):
        normalizer = copy.deepcopy(normalizer).to(logits.device)  # rows of a device without float64 are read on the CPU
    return LayerRows(logits, as_heads(before.value.detach()), normalizer, gradients, as_heads(after.logits)[:, :, rows])


def reduced(values: Values) -> dict[str, float | None]:
    """One number per quantity, over all heads; None where nothing was measured."""
    if values:
        control = values[f"separability@N={SIZE}"].control or []
        derived = {"entropy_share": Measured(values["entropy"].shares()), "separability_control": Measured(control)}
        values = values | derived
    numbers = reduce_heads(values)
    return {name: _rounded(numbers.get(key, math.nan)) for name, key in QUANTITIES.items()}


# -- Runs side by side ------------------------------------------------------------------------------------------------

_POLL = 0.2  # seconds; a wait without an end would not hear Ctrl-C everywhere
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
Keep = Callable[[Configuration, dict[str, Any]], None]


def train_all(
    task: Task, choices: Sequence[Configuration], workers: int, keep: Keep, device: torch.device = CPU
) -> None:
    """Train all in this many processes; this thread calls `keep` for each run that finishes, in any order."""
    context = multiprocessing.get_context("spawn")  # a fork of a process that has used torch's threads may hang
    stop = context.RawValue("b", 0)  # no event: a worker that is killed while it looks would keep its lock
    sizes = {name: value for name, value in task.facts().items() if name not in ("task", "text")}
    given = (stop, os.getpid(), task.name, sizes, getattr(task, "text", None), str(device))
    with ProcessPoolExecutor(workers, context, _start_worker, given) as pool:
        try:
            with _clean_start():
                running = {pool.submit(_train_in_worker, choice): choice for choice in choices}
            # The pool lists the workers to watch whenever it is woken, and `submit` wakes it before it starts one: an
            # empty call makes it see the last worker, whose death would go unnoticed until another run ends.
            pool.submit(int)
            while running:
                for future in wait(running, timeout=_POLL, return_when=FIRST_COMPLETED).done:
                    keep(running.pop(future), future.result())
        except BrokenProcessPool:  # the pool ends the others
            raise AbbeError(
                "a worker ended while it trained (out of memory?): run again to resume, with --workers 1 to see why"
            ) from None
        except BaseException:
            stop.value = 1  # workers end at their next step
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _clean_start() -> Iterator[None]:
    """Processes that start here have one thread, leave Ctrl-C to the caller, and do not run its program again.

    Children inherit environment and ignored signals. multiprocessing would import the caller's `__main__` in each, and
    so train again from a script without `if __name__ == "__main__"`; an empty module in its place has no file to run.
    """
    main, before = sys.modules["__main__"], {name: os.environ.get(name) for name in _ONE_THREAD}
    in_main_thread = threading.current_thread() is threading.main_thread()  # others may not set signals
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main_thread else None
    sys.modules["__main__"] = types.ModuleType("__main__")
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if in_main_thread:
            signal.signal(signal.SIGINT, handler)


_train_here: Callable[[Configuration], dict[str, Any]]  # set in a worker


def _start_worker(stop: Any, caller: int, name: str, sizes: Mapping[str, Any], text: Text | None, device: str) -> None:
    """Make the task, once per worker."""
    global _train_here
    torch.set_num_threads(1)

    def alive() -> None:
        """End the process if it was stopped or its caller is gone."""
        if stop.value or os.getppid() != caller:
            os._exit(1)

    _train_here = partial(train, make_task(name, sizes, text), alive=alive, device=torch.device(device))


def _train_in_worker(choice: Configuration) -> dict[str, Any]:
    try:
        return _train_here(choice)
    except AbbeError:
        raise
    except Exception as error:
        raise RuntimeError(f"{choice.label}: {type(error).__name__}: {error}") from None


def usual_workers(device: torch.device = CPU) -> int:
    """One per core that this process may use; a single one on an accelerator."""
    if device.type != CPU.type:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread, as in a worker: with another number of threads, sums round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
