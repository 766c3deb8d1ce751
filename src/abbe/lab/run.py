"""One training run: all seeds of one configuration, from untrained networks to accuracy on unseen data.

At some steps the network is read: the quantities of the monitor, reduced over heads, for every seed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from .._tensors import where_double
from ..training import Alerts, LayerRows, Measured, Values, measure_layers
from .network import Attention, AttentionSettings, Seen, Temperature, temperature
from .optimizers import Factors, Optimizer, compensation
from .tasks import Batch, Task, stacked


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
        """For a progress bar."""
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
        self.network = task.network(weights, settings, self.dtype).to(device)
        self.optimizer = Optimizer(choice.optimizer, _groups(self.network, choice), choice.decay)
        self.data = [_generator(seed, "data") for seed in choice.seeds]
        self.lengths = _generator(0, "lengths")  # the same for all seeds, whichever are trained together
        self.reader = Reader(self.network, len(choice.seeds))
        self.read_at = reading_steps(choice.steps, choice.readings)
        self.steps: list[int] = []
        self.losses: list[list[float | None]] = []  # mean since the last reading, by seed
        self.readings: list[list[dict[str, Any]]] = []
        self._since: list[Tensor] = []  # losses of the steps since the last reading
        self.start: list[float] = []

    def step(self, step: int) -> None:
        reads = step in self.read_at
        for part in attentions(self.network):
            part.progress = (step - 1) / max(1, self.choice.steps - 1)
        length = self.task.training_length(self.lengths)
        batch = self._batch(self.data, self.choice.batch, length, held_out=False)
        watch(self.network, reads)
        losses = self._losses(batch)
        torch.autograd.backward(losses.sum())
        before = snapshot(self.network)
        self.optimizer.step(self.choice.rate_at(step))
        self._since.append(losses.detach())
        if step == 1:
            self.start = losses.detach().tolist()
        if reads:
            self._read(step, batch, before)
        for parameter in self.network.parameters():
            parameter.grad = None

    def _read(self, step: int, batch: Batch, before: list[Any]) -> None:
        with torch.no_grad():
            self._losses(batch)  # the same rows after the update
        after = snapshot(self.network)
        means = self._mean_losses()
        self.readings.append(self.reader.read(step, before, after, means))
        self.steps.append(step)
        self.losses.append([_rounded(x) for x in means])
        watch(self.network, False)

    def _mean_losses(self) -> list[float]:
        """By seed, since the last reading."""
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
        learned = [_learned(self.network, i) for i in range(len(self.choice.seeds))]
        if self.choice.trained_with:
            for part in attentions(self.network):
                part.use(self.choice.normalizer)
        tested = self._test(None)
        seeds: list[dict[str, Any]] = []
        for i, seed in enumerate(self.choice.seeds):
            values = [reading[i]["values"] for reading in self.readings]
            seeds.append(
                {
                    "seed": seed,
                    "start": self.start[i],
                    "losses": [losses[i] for losses in self.losses],
                    "quantities": {name: [reading.get(name) for reading in values] for name in values[0]},
                    "alerts": _first_alerts(self.steps, [reading[i]["alerts"] for reading in self.readings]),
                    "temperature": [_rounded(part.temperatures()[i]) for part in attentions(self.network)],
                    "learned": learned[i],
                    "accuracy": tested[i][0],
                    "loss": tested[i][1],
                    "lengths": {},
                }
            )
        for length in self.task.test_lengths:
            for i, (accuracy, _, entropy) in enumerate(self._test(length)):
                seeds[i]["lengths"][str(length)] = [accuracy, entropy]
        return {"steps": self.steps, "seeds": seeds}

    @torch.no_grad()
    def _test(self, length: int | None) -> list[list[float | None]]:
        """Accuracy, loss and entropy of the weights (with a length) of every seed on data never trained on."""
        for part in attentions(self.network):
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
                (layer,) = attentions(self.network)  # tasks with lengths have one layer, and a question per example
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


def _first_alerts(steps: list[int], rules: list[list[str]]) -> dict[str, int]:
    """The step at which each rule was first raised."""
    first: dict[str, int] = {}
    for step, raised in zip(steps, rules, strict=True):
        for rule in raised:
            first.setdefault(rule, step)
    return first


def _learned(network: nn.Module, seed: int) -> list[str]:
    """The current normalizers of layers that learn something."""
    parts = [part.normalizer_of(seed) for part in attentions(network)]
    return [str(normalizer) for normalizer in parts if any(True for _ in normalizer.parameters())]


def _rounded(x: float) -> float | None:
    return float(f"{x:.6g}") if math.isfinite(x) else None


# -- Readings ---------------------------------------------------------------------------------------------------------

SIZE = 4  # of the selected sets whose separability is measured: small tasks have few keys
_SEQUENCES, _ROWS = 4, 16  # read at most
# Name in the tables: quantity of the monitor, and how heads are reduced to one number.
QUANTITIES: dict[str, tuple[str, str]] = {
    "max_logit": ("max_logit", "max"),
    "logit_change": ("logit_change", "max"),
    "max_weight": ("max_weight", "mean"),
    "saturated": ("saturated", "mean"),
    "separability": (f"separability@N={SIZE}", "mean"),
    "sensitivity": ("sensitivity_worst_mean", "mean"),
    "gradient_ratio": ("gradient_ratio", "mean"),
    "query_gradient": ("query_gradient", "mean"),
    "nonfinite": ("nonfinite", "max"),
}
ENTROPY, CONTROL = "entropy_share", "separability_control"
ALL_QUANTITIES = (ENTROPY, *QUANTITIES, CONTROL)


def attentions(network: nn.Module) -> list[Attention]:
    return [part for part in network.modules() if isinstance(part, Attention)]


def watch(network: nn.Module, on: bool) -> None:
    for part in attentions(network):
        part.watched, part.seen = on, None


def snapshot(network: nn.Module) -> list[Seen]:
    """What every attention layer computed in the last forward pass."""
    return [part.seen for part in attentions(network) if part.seen is not None]


class Reader:
    """Reads the seeds of one configuration and keeps the state of their alerts."""

    def __init__(self, network: nn.Module, seeds: int) -> None:
        self._layers = attentions(network)
        self._alerts = [Alerts() for _ in range(seeds)]

    def read(self, step: int, before: list[Seen], after: list[Seen], losses: list[float]) -> list[dict[str, Any]]:
        """By seed: its quantities, and the rules that first fired at this step."""
        readings = []
        for seed, values in enumerate(self._values(list(range(len(self._alerts))), step, before, after)):
            events = self._alerts[seed].check(step, values, losses[seed])
            readings.append({"values": _reduced(values), "alerts": sorted({event.rule for event in events})})
        return readings

    def _values(self, seeds: list[int], step: int, before: list[Seen], after: list[Seen]) -> list[Values]:
        """By seed; seeds that share a normalizer are measured at once, as if they were heads."""
        if all(layer.normalizer_of(seed) is layer.normalizer_of(seeds[0]) for layer in self._layers for seed in seeds):
            layers = [_rows(layer, seeds, *seen) for layer, *seen in zip(self._layers, before, after, strict=True)]
            heads = self._layers[0].settings.heads
            try:
                together = measure_layers(layers, sizes=(SIZE,), step=step, alike=len(seeds))
            except AbbeError:  # weights that are not finite have no measures, but the other seeds do
                if len(seeds) == 1:
                    return [{}]
            else:
                return [_part(together, slice(i * heads, (i + 1) * heads)) for i in range(len(seeds))]
        return [values for seed in seeds for values in self._values([seed], step, before, after)]


def _part(values: Values, heads: slice) -> Values:
    def cut(grid: list[list[float]] | None) -> list[list[float]] | None:
        return None if grid is None else [layer[heads] for layer in grid]

    return {name: Measured(cut(one.value) or [], cut(one.limit), cut(one.control)) for name, one in values.items()}


def _rows(layer: Attention, seeds: list[int], before: Seen, after: Seen) -> LayerRows:
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


def _reduced(values: Values) -> dict[str, float | None]:
    numbers: dict[str, float | None] = dict.fromkeys(ALL_QUANTITIES)
    for name, (quantity, how) in QUANTITIES.items():
        if quantity in values:
            numbers[name] = _over_heads(values[quantity].value, how)
    if values:
        entropy = values["entropy"]
        pairs = [
            zip(heads, limits, strict=True) for heads, limits in zip(entropy.value, entropy.limit or (), strict=True)
        ]
        shares = [[x / most if most > 0 else math.nan for x, most in heads] for heads in pairs]
        numbers[ENTROPY] = _over_heads(shares, "mean")
        separability = values.get(QUANTITIES["separability"][0])
        if separability is not None and separability.control is not None:
            numbers[CONTROL] = _over_heads(separability.control, "mean")
    return numbers


def _over_heads(grid: list[list[float]], how: str) -> float | None:
    finite = [x for heads in grid for x in heads if math.isfinite(x)]
    if not finite:
        return None
    value = max(finite) if how == "max" else math.fsum(finite) / len(finite)
    return float(f"{value:.6g}")
