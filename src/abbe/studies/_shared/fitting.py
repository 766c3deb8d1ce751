"""Fit the few parameters of a swap: head by head to the outputs of the original attention, or end to end on the loss.

Heads are independent: all heads of a layer are fitted at once, and each accepts or rejects its own steps. A coarse grid
search over every parameter in turn is followed by Levenberg-Marquardt steps (damped least squares; the few derivatives
are finite differences). Steps that raise a head's error are rejected, so no head ends up worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..._errors import AbbeError
from ..._tensors import where_double
from ...models import AttentionCall, LoadedModel, Tap, Window, rules_in
from ...normalizers import Learned, Normalizer, format_spec, normalizer, parse_spec
from ...runs.inputs import Settings
from ...runs.window import Passes, PassReader, query_positions, run_model

State = dict[str, Tensor]

_NUMBERS_AT_ONCE = 1 << 26  # per portion: a quarter of a gigabyte
_GRID = (-2.0, -1.5, -1.0, -0.6, -0.3, 0.3, 0.6, 1.0, 1.5, 2.0)  # added to a raw parameter
_STEP = 2e-3  # of finite differences in the raw parameter: large against float32 rounding, small against its curvature
_LONGEST = 1.0  # step of a raw parameter: the linear model is useless beyond
_EDGE = 12.0  # limit for raw parameters of a bounded range: beyond it nothing changes and gradients vanish
_SMALL_GAIN = 1e-3  # of the error; the search ends after some rounds in which no head gains more
_PATIENCE = 2  # such rounds: a single one may only have raised the damping
_RATE = 0.05  # for raw parameters, decaying linearly to 0
_KEEP_EVERY = 5  # steps
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # of Adam
_TEMPERATURE = "scaled"
# If they learn, they learn a scale: a temperature would do the same.
_WITH_SCALE = ("learned-temperature", "ssmax", "asentmax")


# -- What is fitted: a temperature per head, and every parameter of a spec with learn=true ----------------------------


def learnable_rules(rules: object) -> str | dict[str, str]:
    """What `swap` takes, for a spec, "PATTERN=SPEC; ..." or a mapping from patterns to specs."""
    rules = rules_in(rules) if isinstance(rules, str) else rules
    if isinstance(rules, Mapping):
        return {pattern: learnable(_checked(spec)) for pattern, spec in rules.items()}
    return learnable(_checked(rules))


def learnable(spec: str) -> str:
    """The spec on logits with a learned scale; its parameters stay as written, except those with learn=true.

    A free parameter would turn into softmax, whose outputs are the target, and still be named after the spec.

    Examples:
        >>> learnable("entmax:alpha=1.5")
        'scaled:of=entmax:alpha=1.5,t=0,learn=true'
    """
    instance, (_, options) = normalizer(spec), parse_spec(spec)
    parts = [part for part in instance.modules() if isinstance(part, Normalizer)]
    if "heads" in spec or any(part._given.get("heads", 1) > 1 for part in parts):
        raise AbbeError(f"{spec}: leave heads= out, every head of a layer gets its own value")
    if instance.name == _TEMPERATURE:
        if "learn" in options and not instance.learned:
            raise AbbeError(f"{spec} has nothing to fit: leave learn=false out of it")
        return format_spec(_TEMPERATURE, {**options, "learn": True})
    as_written = format_spec(instance.name, options)
    if instance.name in _WITH_SCALE and instance.learned:
        return as_written
    return format_spec(_TEMPERATURE, {"of": as_written, "t": 0.0, "learn": True})


def _checked(spec: object) -> str:
    if isinstance(spec, Normalizer):
        raise AbbeError(f"calibrate makes its own normalizers: give the spec {spec.spec!r} instead of an instance")
    if not isinstance(spec, str):
        raise AbbeError(f"calibrate needs a spec such as 'entmax:alpha=1.5', got {type(spec).__name__}")
    if spec.startswith("file:"):
        raise AbbeError(f"{spec} is already calibrated: give the spec of a normalizer, such as entmax:alpha=1.5")
    return spec


# -- Rows of the unchanged model --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LayerRows:
    """What one layer does with the sampled queries.

    Attributes:
        logits: (window, head, query, key); a learned sink is an additional first key, whose value is 0.
        values: (window, head or key head, key, width).
        outputs: (window, head, query, width), of the baseline.
    """

    logits: Tensor
    values: Tensor
    outputs: Tensor

    def averaged(self, weights: Tensor) -> Tensor:
        """The outputs with these weights."""
        batch, heads, queries, keys = weights.shape
        grouped = weights.reshape(batch, self.values.shape[1], -1, keys)
        return (grouped @ self.values).view(batch, heads, queries, -1)

    def of_heads(self, heads: Sequence[int]) -> LayerRows:
        if list(heads) == list(range(self.logits.shape[1])):
            return self
        shared = self.logits.shape[1] // self.values.shape[1]
        values = self.values[:, [head // shared for head in heads]]
        return LayerRows(self.logits[:, list(heads)], values, self.outputs[:, list(heads)])


class RowReader(PassReader):
    """Reads the rows of layers from the unchanged model, in portions that fit in memory."""

    def __init__(
        self, model: LoadedModel, tap: Tap, windows: Sequence[Window], settings: Settings, layers: Sequence[str],
        heads: int,
    ) -> None:  # fmt: skip
        """`layers` by name, each with at most this many heads."""
        self._windows, self._settings, self._passes = windows, settings, Passes(model, tap)
        self._parts: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {}  # of the layers that are read
        length = max(window.length for window in windows)
        numbers = heads * len(windows) * min(settings.queries or length, length) * length
        at_once = max(1, _NUMBERS_AT_ONCE // numbers)  # layers: their rows are kept until they are used
        self._portions = [layers[start : start + at_once] for start in range(0, len(layers), at_once)]

    def rows(self, name: str) -> LayerRows:
        """The rows of a layer over all windows; they are read together with those of its portion, and dropped now."""
        if name not in self._parts:
            self._parts = {other: [] for other in next(portion for portion in self._portions if name in portion)}
            for window in self._windows:
                self._passes.read(window, self, run=run_model)
        if not self._parts[name]:
            raise AbbeError(f"{name} was not called on this text: leave it out, if you can, by a pattern")
        return LayerRows(*map(torch.cat, zip(*self._parts.pop(name), strict=True)))

    def read(self, call: AttentionCall, window: Window, *weights_of: object) -> None:
        if call.name not in self._parts:
            return
        queries = query_positions(call.query.shape[-2], self._settings, window)
        logits, values = where_double(call.logits(queries, sink=True).float()), where_double(call.value.float())
        if call.sink is not None:
            values = torch.cat([torch.zeros_like(values[..., :1, :]), values], -2)
        rows = LayerRows(logits, values, values[:0])
        self._parts[call.name].append((logits, values, rows.averaged(normalizer("softmax")(logits))))


# -- Head by head, to the original outputs ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HeadFits:
    """Per head: error before and after, relative to `energy`; shares of visible keys with weight exactly 0."""

    energy: Tensor  # sum of squares of the baseline's outputs
    error_before: Tensor
    error_after: Tensor
    zeros_before: Tensor
    zeros_after: Tensor


@torch.no_grad()
def fit(normalizer: Normalizer, rows: LayerRows, steps: int) -> HeadFits:
    """Fit all parameters of the normalizer in place, with at most this many steps after the grid search."""
    problem = _Problem(normalizer, rows)
    start = problem.point()
    before, zeros_before = problem.error(problem.outputs(start)), _zeros(normalizer, rows)
    point, error = _search_grid(problem, start, before)
    point, error = _descend(problem, point, error, steps)
    problem.set(point)
    return HeadFits(problem.energy, before, error, zeros_before, _zeros(normalizer, rows))


@torch.no_grad()
def judge(normalizer: Normalizer, rows: LayerRows) -> tuple[Tensor, Tensor]:
    """Error and share of zeros per head, as in `HeadFits`, without fitting."""
    problem = _Problem(normalizer, rows)
    return problem.error(problem.outputs(problem.point())), _zeros(normalizer, rows)


class _Problem:
    """Errors of all heads as a function of a point: (parameter, head), the raw values."""

    def __init__(self, normalizer: Normalizer, rows: LayerRows) -> None:
        self._normalizer, self._rows = normalizer, rows
        self._raws: list[nn.Parameter] = list(normalizer.parameters())
        bounded = [part.low > -torch.inf for part in normalizer.modules() if isinstance(part, Learned)]
        self._edge = torch.tensor([_EDGE if is_bounded else torch.inf for is_bounded in bounded])[:, None]
        self.energy = rows.outputs.double().square().sum((0, 2, 3))
        # A head whose outputs are all 0 has no scale: its differences are 0 in any unit.
        self._unit = self.energy.clamp(min=1e-30).sqrt().float()[:, None, None]

    def point(self) -> Tensor:
        return torch.stack([raw.detach().reshape(-1).clone() for raw in self._raws])

    def set(self, point: Tensor) -> None:
        for raw, values in zip(self._raws, point, strict=True):
            raw.copy_(values.view_as(raw))

    def within(self, point: Tensor, start: Tensor) -> Tensor:
        """Clamp to the edges, or to the start if it lies beyond."""
        reach = torch.maximum(self._edge.to(point), start.abs())
        return torch.maximum(torch.minimum(point, reach), -reach)

    def outputs(self, point: Tensor) -> Tensor:
        """Difference from the baseline's outputs, in units of their norm: (window, head, query, width)."""
        self.set(point)
        return (self._rows.averaged(self._normalizer(self._rows.logits)) - self._rows.outputs) / self._unit

    @staticmethod
    def error(outputs: Tensor) -> Tensor:
        return outputs.double().square().sum((0, 2, 3))


def _search_grid(problem: _Problem, start: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Each parameter in turn on a grid around its start, the others at their best so far."""
    best = start.clone()
    for number in range(len(start)):
        base = best.clone()
        for offset in _GRID:
            trial = base.clone()
            trial[number] = start[number] + offset
            trial = problem.within(trial, start)
            error_there = problem.error(problem.outputs(trial))
            better = error_there < error
            best, error = torch.where(better, trial, best), torch.where(better, error_there, error)
    return best, error


def _descend(problem: _Problem, point: Tensor, error: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Damped least squares, with separate damping per head."""
    # Little damping at the start: the outputs are smooth in so few parameters, and a failed step is damped at once.
    outputs, damping, idle = problem.outputs(point), torch.full_like(error, 1e-2), 0
    for _ in range(steps):
        trial = problem.within(point + _move(problem, point, outputs, damping).to(point), point)
        there = problem.outputs(trial)
        error_there = problem.error(there)
        better = error_there < error
        idle = 0 if bool((error - error_there > _SMALL_GAIN * error).any()) else idle + 1
        point, error = torch.where(better, trial, point), torch.where(better, error_there, error)
        outputs = torch.where(better[:, None, None], there, outputs)
        # Bounded, so that a head that fails for long can still recover.
        damping = torch.where(better, damping / 4, damping * 8).clamp(1e-8, 1e8)
        if idle == _PATIENCE:
            break
    return point, error


def _move(problem: _Problem, point: Tensor, outputs: Tensor, damping: Tensor) -> Tensor:
    """The step of every head: (parameter, head)."""
    columns = []
    for number in range(len(point)):
        shifted = point.clone()
        shifted[number] += _STEP
        columns.append((problem.outputs(shifted) - outputs) / _STEP)
    slopes = torch.stack([_dot(column, outputs) for column in columns], -1)
    gram = torch.stack([torch.stack([_dot(a, b) for b in columns], -1) for a in columns], -1)
    # A parameter without effect has a row of zeros: the small addend keeps the system solvable.
    ridge = damping[:, None] * gram.diagonal(dim1=-2, dim2=-1) + 1e-12
    solved: Tensor = torch.linalg.solve(gram + torch.diag_embed(ridge), slopes)
    return -torch.clamp(solved.T, -_LONGEST, _LONGEST)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """(head,), summed in float64."""
    return (a * b).sum((0, 2, 3), dtype=torch.float64)


def _zeros(normalizer: Normalizer, rows: LayerRows) -> Tensor:
    """Per head, the share of visible keys with weight exactly 0."""
    visible = rows.logits > -torch.inf
    zeros = (normalizer(rows.logits) == 0) & visible
    share: Tensor = zeros.sum((0, 2, 3)).double() / visible.sum((0, 2, 3)).clamp(min=1)
    return share


# -- End to end, on the loss ------------------------------------------------------------------------------------------


def fine_tune(
    model: LoadedModel, parameters: Sequence[nn.Parameter], windows: Sequence[Window], steps: int,
    start: State | None, keep: Callable[[State], object], on_step: Callable[[int], object],
) -> None:  # fmt: skip
    """Steps of Adam, each on one window, in turn; resumes from `start`, the state that `keep` received last."""
    optimizer = torch.optim.Adam(parameters, lr=_RATE)
    done = _restore(optimizer, parameters, start) if start is not None else 0
    with only_learning(model.network, parameters):
        for step in range(done, steps):
            optimizer.param_groups[0]["lr"] = _RATE * (1 - step / steps)
            optimizer.zero_grad(set_to_none=True)
            loss = _loss(model, windows[step % len(windows)].tokens)
            if not bool(torch.isfinite(loss)):
                raise AbbeError(f"fine-tuning failed: the loss is {float(loss)} at step {step + 1}; try fewer steps")
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if (step + 1) % _KEEP_EVERY == 0 or step + 1 == steps:
                keep(_state(optimizer, parameters, step + 1))
            on_step(step + 1)
    optimizer.zero_grad(set_to_none=True)


@contextmanager
def only_learning(network: nn.Module, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Freeze all other parameters of the network."""
    learning = {id(parameter) for parameter in parameters}
    frozen = [weight for weight in network.parameters() if weight.requires_grad and id(weight) not in learning]
    for weight in frozen:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(True)


@torch.enable_grad()
def _loss(model: LoadedModel, tokens: Tensor) -> Tensor:
    network: Any = model.network
    batch = tokens[None].to(model.device)
    logits = network(input_ids=batch, use_cache=False).logits[0, :-1]
    return cross_entropy(logits.float(), batch[0, 1:].to(logits.device))


def _state(optimizer: torch.optim.Adam, parameters: Sequence[nn.Parameter], steps: int) -> State:
    state = {"steps": torch.tensor(steps)}
    for number, parameter in enumerate(parameters):
        state[f"{number}.raw"] = parameter.detach().clone()
        state |= {f"{number}.{name}": optimizer.state[parameter][name].clone() for name in _MOMENTS}
    return state


def _restore(optimizer: torch.optim.Adam, parameters: Sequence[nn.Parameter], state: State) -> int:
    for number, parameter in enumerate(parameters):
        with torch.no_grad():
            parameter.copy_(state[f"{number}.raw"])
        optimizer.state[parameter] = {name: state[f"{number}.{name}"].clone() for name in _MOMENTS}
    return int(state["steps"])
