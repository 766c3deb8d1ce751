"""Attention calls of a step read as sums by layer: rows, gradients, changes by the update, and the loss.

The measures are those of `abbe diagnose`. The random sets of the control are the same for every sequence of a batch, so
that the numbers do not depend on how a batch is cut into micro-batches or spread over processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._attention.engine import beside_sink
from .._errors import AbbeError
from .._tensors import generator_named, where_double
from ..measures import (
    Reading,
    Rows,
    Sets,
    State,
    compute,
    dispersion,
    geometry,
    merge,
    random_order,
    sensitivity,
    update,
)
from ..models import HeardCall, Listener, self_check_tolerance
from ..normalizers import Learned, Normalizer
from ..runs.window import Heads, one_per_stretch, parts_by_rule
from ._quantities import PARTS, QUANTITIES, SATURATED, Grid, Measured, Values

_BLOCK = 1 << 20  # logits measured at once; the measures need some hundred bytes for each
_LEARNED = "learned@"  # before the name of an option whose value a normalizer learns
_OF_WEIGHTS = ("entropy", "effective_tokens", "max_weight", "sink_mass")


def seeded(seed: int, step: int, use: str) -> torch.Generator:
    """A generator that depends on seed, step and use alone: the same on every rank, and never the global one."""
    return generator_named(f"abbe monitor, seed {seed}, step {step}, {use}")


@dataclass(frozen=True)
class Largest:
    """The largest of (head, row); -inf where no row is defined."""

    value: Tensor
    defined: Tensor

    def sums(self) -> dict[str, Tensor]:
        return {"largest": torch.where(self.defined, self.value.double(), -torch.inf).amax(1)}


def _random_draws(seed: int, step: int, layer: int, rows: int, heads: int, size: int) -> Tensor:
    """(row, head, size): what draws the random sets of a layer, the same for every sequence and on every device."""
    generator = seeded(seed, step, f"random sets of layer {layer}")
    return torch.rand(rows, heads, size, dtype=torch.float64, device="cpu", generator=generator)


def read_rows(
    call: HeardCall, positions: Tensor, real: Tensor | None, sizes: tuple[int, ...], seed: int, step: int
) -> State:
    """Sums over these rows of all sequences, by head; `real` (batch, length) is False for padding."""
    batch, heads, keys = call.query.shape[0], call.query.shape[1], call.key.shape[-2]
    at_once = max(1, _BLOCK // (heads * len(positions) * keys))
    if any(one.normalizer is not None and one.normalizer.learned for one in call.rule or ()):
        at_once = 1  # values per head belong to the heads of one sequence
    chance = _random_draws(seed, step, call.layer, len(positions), heads, min(sizes[-1], keys))
    states: dict[Heads, State] = {}
    for start in range(0, batch, at_once):
        block = call.rows(positions, start, start + at_once)
        device = block.query.device
        counted = None
        if real is not None:
            counted = where_double(real[start : start + at_once].to(device)[:, positions.to(device)])
        for some, part, normalizer in parts_by_rule(block):
            logits, values = part.logits(torch.arange(len(positions))).float(), part.value.float()
            sink = None if part.sink is None else where_double(part.sink.float())
            drawn = chance if some is None else chance[:, list(some)]
            doubles = where_double(logits), where_double(values)
            readings = row_readings(*doubles, counted, sizes, drawn, sink=sink, normalizer=normalizer)
            states[some] = update(states.get(some, {}), readings)
    return _of_all_heads(states) | _learned(call)


def _of_all_heads(states: Mapping[Heads, State]) -> State:
    """The sums of groups of heads side by side, in the order of the heads; NaN where a group has no such sum."""
    if None in states:
        return states[None]
    order = torch.tensor([head for heads in states for head in heads or ()])
    names = dict.fromkeys(name for state in states.values() for name in state)
    joined: State = {}
    for name in names:
        like = next(state[name] for state in states.values() if name in state)
        parts = [
            state[name] if name in state else like.new_full((len(heads or ()), *like.shape[1:]), torch.nan)
            for heads, state in states.items()
        ]
        joined[name] = torch.cat(parts)[order.argsort().to(like.device)]
    return joined


def _learned(call: HeardCall) -> State:
    """The learned values of the normalizers of a layer by head, by the names of their options."""
    values: State = {}
    for group in call.rule or ():
        for path, part in () if group.normalizer is None else group.normalizer.named_modules():
            if isinstance(part, Learned):
                name = f"{_LEARNED}{path.replace('learned.', '')}/largest"
                of_heads = values.setdefault(name, torch.full((call.query.shape[1],), -torch.inf, dtype=torch.float64))
                of_heads[list(group.heads)] = part.value().detach().double().cpu().flatten()
    return values


def row_readings(
    logits: Tensor, values: Tensor, real: Tensor | None, sizes: tuple[int, ...], chance: Tensor, *,
    sink: Tensor | None = None, normalizer: Normalizer,
) -> dict[str, Reading | Largest]:  # fmt: skip
    """Measures of logits (batch, head, query, key), -inf for hidden keys, and values (batch, key head, key, feature).

    `real` (batch, query) is False for padding; `chance` (query, head, size) draws the random sets; there may be
    learned logits `sink` (head,).
    """
    batch, heads, queries = logits.shape[:3]
    tokens = torch.ones(batch, 1, queries, dtype=torch.bool, device=logits.device) if real is None else real[:, None]
    bad = _nonfinite(logits, values)
    if bool(bad.any()):  # these rows are counted, but not measured
        logits = torch.where(bad[..., None] & (logits != -torch.inf), 0.0, logits)
        values = torch.nan_to_num(values, 0.0, 0.0, 0.0)
    rows = _rows(logits, values, sink, normalizer)

    def by_head(x: Tensor) -> Tensor:
        """(batch * head, query, ...) as (head, batch * query, ...)."""
        return x.reshape(batch, heads, *x.shape[1:]).transpose(0, 1).flatten(1, 2)

    counted = tokens.expand(batch, heads, queries).flatten(0, 1)
    used = counted & ~bad.flatten(0, 1)

    def reading(measure: Reading, size: int | None = None) -> Reading:
        """By head, of the rows that are used; `size` is the index of a set size."""

        def part(x: Tensor) -> Tensor:
            return by_head(x if size is None else x[..., size])

        limit = None if measure.limit is None else part(measure.limit)
        control = None if measure.control is None else part(measure.control)
        return Reading(part(measure.value), part(measure.defined) & by_head(used), limit, control)

    of_weights = dispersion(rows)
    # The random direction that `sensitivity` also measures is not reported, so its seed has no effect.
    generator = torch.Generator().manual_seed(0)
    worst = sensitivity(rows, normalizer, (1.0,), generator)["sensitivity_worst"]
    draws = chance.transpose(0, 1).repeat(batch, 1, 1).to(logits.device)
    sets = Sets(sizes, rows.order(sizes[-1]), random_order(rows, draws))
    separability = geometry(rows, sets)["separability"]
    visible = rows.count > 0
    saturated = (rows.facts.largest > SATURATED).double()
    largest = torch.where(visible, rows.logits.amax(-1), 0.0)
    return {
        **{name: reading(of_weights[name]) for name in _OF_WEIGHTS},
        **{f"separability@N={size}": reading(separability, i) for i, size in enumerate(sizes)},
        "sensitivity_worst_mean": reading(worst),
        "sensitivity_worst_max": Largest(by_head(worst.value), by_head(worst.defined & used)),
        "saturated": reading(Reading(saturated, visible)),
        "max_logit": Largest(by_head(largest), by_head(visible & used)),
        "nonfinite": Reading(by_head(bad.flatten(0, 1).double()), by_head(counted)),
    }


def _nonfinite(logits: Tensor, values: Tensor) -> Tensor:
    """(batch, head, query): whether a logit is NaN or +inf (-inf hides a key), or a value is not finite."""
    of_values = ~values.isfinite().flatten(2).all(-1)
    of_values = of_values.repeat_interleave(logits.shape[1] // values.shape[1], 1)
    return ~(logits.amax(-1) < torch.inf) | of_values[..., None]  # the comparison is false for NaN, too


def _rows(logits: Tensor, values: Tensor, sink: Tensor | None, normalizer: Normalizer) -> Rows:
    """All sequences side by side: (batch * head, query, key), with the values of (batch * key head)."""
    flat, vectors = logits.flatten(0, 1), values.flatten(0, 1)
    if sink is None:
        weights = normalizer(logits).flatten(0, 1).contiguous()
        return Rows(flat, weights, vectors, softmax=str(normalizer) == "softmax")
    sinks = sink.repeat(len(logits))
    with_sink = torch.cat([flat, sinks[:, None, None].expand(-1, flat.shape[1], 1)], -1)
    weights = torch.softmax(with_sink, -1)[..., :-1].contiguous()
    if str(normalizer) != "softmax":
        weights = beside_sink(normalizer, logits, sink).flatten(0, 1).contiguous()
    return Rows(flat, weights, vectors, sink=True, sink_logits=sinks)


def self_check(call: HeardCall, positions: Tensor, autocast: torch.dtype | None) -> float | None:
    """How far the attention of the first sequence's rows, rebuilt from the reading, is from what the model computed.

    Relative to the standard deviation of the output; None with dropout, which makes the output random. Too large a
    difference is an AbbeError: the reading would not describe the model.
    """
    output = call.output
    if output is None or call.dropout > 0:
        return None
    rows, every = call.rows(positions, 0, 1), torch.arange(len(positions))
    weights, values = rows.weights(every).float(), rows.value.float()
    values = values.repeat_interleave(weights.shape[1] // values.shape[1], 1)
    rebuilt = (weights @ values).transpose(1, 2)[0]
    computed = output.detach()[0].float()
    if computed.shape[1:] != rebuilt.shape[1:] or not bool(computed.isfinite().all()):
        return None
    seen = rows.visible(every).any(-1).any(1)[0]
    differences = (computed[positions.to(computed.device)] - rebuilt)[seen].abs()
    # Outputs that are all equal have no spread to be relative to: any difference from them is then too large.
    error = float(differences.max() / computed.std().clamp(min=1e-12)) if bool(seen.any()) else 0.0
    # Some heads may have computed in the type of autocast, even if others made the output of the layer float32.
    dtypes = {x.dtype for x in (call.query, call.value, output)} | (set() if autocast is None else {autocast})
    allowed = max(map(self_check_tolerance, dtypes))
    if not error <= allowed:
        raise AbbeError(
            f"self-check failed: attention rebuilt from {call.name} differs from the model's by {error:.2g} of its "
            f"standard deviation (allowed {allowed:g})"
        )
    return error


@dataclass(frozen=True, eq=False)
class LayerRows:
    """One attention layer at one step.

    Attributes:
        logits: (batch, head, query, key), -inf for hidden keys, any temperature included.
        values: (batch, head, key, feature).
        normalizer: maps logits to weights.
        gradients: of "query", "key" and "value", each (batch, head, position, feature), as far as known.
        after: the logits of the same rows after the update, if known.
    """

    logits: Tensor
    values: Tensor
    normalizer: Normalizer
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    after: Tensor | None = None


@torch.no_grad()
def measure_layers(
    layers: Sequence[LayerRows], *, sizes: tuple[int, ...], seed: int = 0, step: int = 0, alike: int = 1
) -> Values:
    """What a `Monitor` would measure, for a network that provides its logits, values and gradients itself.

    `list_quantities` says what high and low mean.

    Args:
        layers: rows of every layer.
        sizes: sizes N of the selected sets whose separability is measured, rising.
        seed: of the random sets, >= 0.
        step: of the optimizer, which the random sets depend on.
        alike: number of networks that the heads belong to, side by side; all get the same random sets, so that none
            depends on its neighbours.

    Returns:
        Every measure by name, with values by layer and head.

    Examples:
        >>> softmax = abbe.normalizer("softmax")
        >>> layer = abbe.training.LayerRows(torch.zeros(1, 2, 4, 8), torch.randn(1, 2, 8, 3), softmax)
        >>> values = abbe.training.measure_layers([layer], sizes=(2,))
        >>> [[round(x, 3) for x in heads] for heads in values["effective_tokens"].value]
        [[8.0, 8.0]]
    """
    return values_of({i: _layer_state(i, layer, sizes, seed, step, alike) for i, layer in enumerate(layers)})


def _layer_state(number: int, layer: LayerRows, sizes: tuple[int, ...], seed: int, step: int, alike: int) -> State:
    heads, queries, keys = layer.logits.shape[1:]
    chance = _random_draws(seed, step, number, queries, heads // alike, min(sizes[-1], keys)).repeat(1, alike, 1)
    logits, values = layer.logits.float(), layer.values.float()
    readings = row_readings(logits, values, None, sizes, chance, normalizer=layer.normalizer)
    known = {part: layer.gradients[part] for part in PARTS if part in layer.gradients}
    squares = {f"{part}_gradient/squares": x.double().square().sum((0, 2, 3)) for part, x in known.items()}
    change = no_change(heads)
    if layer.after is not None:
        visible = layer.logits != -torch.inf
        change = change_sums(layer.after.double() - layer.logits.double(), visible, (0, 2, 3))
    return update({}, readings) | squares | change


@dataclass(eq=False)
class _Pass:
    """A forward pass that has gradients; it is kept alive by its graph until a backward pass reaches it."""

    states: dict[int, State] = field(default_factory=dict)
    loss: Tensor | None = None  # computed by the model itself


class StepReading:
    """Listens to the passes of one step; the first error ends the reading, not the step.

    A pass belongs to the step once a gradient comes back to it: evaluation that forgot `no_grad` does not.
    """

    def __init__(self, step: int, *, rows: int, sizes: tuple[int, ...], seed: int, keep: bool, check: bool) -> None:
        self.step, self.wanted, self.sizes, self.seed = step, rows, sizes, seed
        self.failure: Exception | None = None  # the first error
        self.interrupted = False  # a pass ended with an exception of the model, which the loop may have handled
        self.summed = False  # whether the losses of the passes are parts of one sum
        self.error: float | None = None  # the largest of the self-check, None if it could not be done
        self.passes: dict[int, _Pass] = {}  # by number, those that a gradient came back to
        self.seconds = 0.0  # spent on reading
        self._keep, self._check = keep, check
        self._begun, self._pass = 0, _Pass()  # number of passes so far, and the last one
        self._heads: dict[int, int] = {}
        self._squares: dict[int, State] = {}  # of gradients, by layer and head
        self._inputs: dict[int, _Inputs] = {}  # by layer, of the first sequence
        self._real: Tensor | None = None  # tokens that are not padding
        self._positions: dict[int, Tensor] = {}

    def begin_pass(self, inputs: Mapping[str, Any]) -> None:
        self._begun, self._pass = self._begun + 1, _Pass()
        self._positions = {}
        mask = inputs.get("attention_mask")
        self._real = mask.detach().bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None
        self.summed = self.summed or inputs.get("num_items_in_batch") is not None

    def end_pass(self, output: Any) -> None:
        self.interrupted = self.interrupted or output is None
        loss = getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._pass.loss = loss.detach()
        parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple) else (output,)
        self._await_gradient(*parts)

    def hear(self, call: HeardCall) -> None:
        self._guarded(lambda: self._hear(call))

    def hear_again(self, call: HeardCall) -> None:
        """A layer that runs again in the backward pass hooks its tensors again; nothing counts twice.

        Only one of the two graphs is walked: without reentrance the first; with it the second, since the first pass has
        no graph then.
        """
        self._guarded(lambda: self._watch(call))

    def finish(self, listener: Listener) -> dict[int, State]:
        """Sums of every layer, after the update; called while the listener is open."""
        changes: dict[int, State] = {}
        if self._keep:
            # Nothing before the attention function is known to draw random numbers; if it does, training is not moved.
            with _random_states_kept({inputs.logits.device for inputs in self._inputs.values()}):
                changes = {layer: _change(listener, inputs) for layer, inputs in self._inputs.items()}
        if self.failure is not None:
            raise self.failure
        states: dict[int, State] = {}
        for _, trained in sorted(self.passes.items()):
            for layer, state in trained.states.items():
                states[layer] = merge(states.get(layer, {}), state)
        return {
            layer: state | self._squares.get(layer, {}) | changes.get(layer, no_change(self._heads[layer]))
            for layer, state in sorted(states.items())
        }

    def loss(self, reported: Any) -> float | None:
        """What the loop reported, else what the model computed: parts of one sum, or the mean over micro-batches."""
        if reported is not None:
            return float(reported.detach() if isinstance(reported, Tensor) else reported)
        losses = [float(trained.loss) for trained in self.passes.values() if trained.loss is not None]
        if not losses:
            return None
        return math.fsum(losses) / (1 if self.summed else len(losses))

    def _await_gradient(self, *tensors: Any) -> None:
        """The pass in progress is one of training if a gradient comes back to one of these."""
        reached = {self._begun: self._pass}
        for tensor in tensors:
            if getattr(tensor, "grad_fn", None) is not None:
                tensor.register_hook(lambda _, reached=reached: self.passes.update(reached))

    def _guarded(self, work: Callable[[], None]) -> None:
        if self.failure is not None:
            return
        begun = time.perf_counter()
        try:
            work()
        except Exception as error:
            self.failure = error
        self.seconds += time.perf_counter() - begun

    @torch.no_grad()
    def _hear(self, call: HeardCall) -> None:
        self._watch(call)
        self._await_gradient(call.query, call.key, call.value)
        kind = call.query.device.type
        casts = torch.amp.is_autocast_available(kind)
        half = torch.get_autocast_dtype(kind) if casts and torch.is_autocast_enabled(kind) else None
        with torch.autocast(kind, enabled=False) if casts else nullcontext():
            positions = self._positions_for(call.query.shape[-2])
            shape = call.query.shape[0], call.query.shape[-2]
            # The mask of the inputs says nothing about a layer of another length.
            real = self._real if self._real is not None and self._real.shape == shape else None
            state = read_rows(call, positions, real, self.sizes, self.seed, self.step)
            states = self._pass.states
            states[call.layer] = merge(states.get(call.layer, {}), state)
            self._heads[call.layer] = call.query.shape[1]
            if not self.passes:  # of the passes before the first backward pass, the last one is kept
                if self._check and (error := self_check(call, positions, half)) is not None:
                    self.error = max(error, self.error or 0.0)
                if self._keep:
                    self._inputs[call.layer] = _inputs_of(call, positions, half)

    def _watch(self, call: HeardCall) -> None:
        """Sum the squares of the gradients of queries, keys and values by head, by hooks on the tensors."""
        for part in PARTS:
            tensor: Any = getattr(call, part)
            if tensor.requires_grad:
                add = partial(self._add_gradient, call.layer, part, call.query.shape[1])
                tensor.register_hook(lambda gradient, add=add: self._guarded(lambda: add(gradient.detach())))

    @torch.no_grad()
    def _add_gradient(self, layer: int, part: str, heads: int, gradient: Tensor) -> None:
        norms = where_double(torch.linalg.vector_norm(gradient, dim=(0, 2, 3), dtype=torch.float32)).double()
        # Heads that share keys and values also share their gradient.
        squares = norms.square().repeat_interleave(heads // len(norms))
        sums, name = self._squares.setdefault(layer, {}), f"{part}_gradient/squares"
        sums[name] = sums[name] + squares if name in sums else squares

    def _positions_for(self, length: int) -> Tensor:
        """The same positions in every layer and sequence of a pass."""
        if length not in self._positions:
            generator = seeded(self.seed, self.step, f"rows of pass {self._begun}, length {length}")
            # Not the first one: a causal query sees one key there, and every measure of one key is trivial.
            self._positions[length] = one_per_stretch(min(1, length - 1), length, self.wanted, generator)
        return self._positions[length]


# -- Values -----------------------------------------------------------------------------------------------------------

_Parts = tuple[Tensor, Tensor | None, Tensor | None]  # value, limit and control of the heads of one layer

_ORDER = {quantity.name: position for position, quantity in enumerate(QUANTITIES)}
_NOT_MEANS = ("max_logit", "sensitivity_worst_max", "logit_change", *(f"{part}_gradient" for part in PARTS))


def values_of(states: Mapping[int, State]) -> Values:
    """Every measure of every head of one step, in the order of the quantities."""
    layers = [_layer_measures(state) for _, state in sorted(states.items())]
    heads = [len(next(iter(layer.values()))[0]) for layer in layers]
    names = {name: None for layer in layers for name in layer}
    ordered = sorted(names, key=lambda name: _ORDER[name.partition("@")[0]])
    return {name: _measured([layer.get(name) for layer in layers], heads) for name in ordered}


def _layer_measures(state: State) -> dict[str, _Parts]:
    learned = {name.rpartition("/")[0]: x for name, x in state.items() if name.startswith(_LEARNED)}
    not_means = {*_NOT_MEANS, *learned}
    means = {name: x for name, x in state.items() if name.rpartition("/")[0] not in not_means}
    measures: dict[str, _Parts] = {name: (x.value, x.limit, x.control) for name, x in compute(means).items()}
    plain: dict[str, Tensor] = {}  # without limit and control
    for name in ("max_logit", "sensitivity_worst_max"):
        largest = state[f"{name}/largest"]
        plain[name] = torch.where(largest > -torch.inf, largest, torch.nan)
    plain |= {name: torch.where(x > -torch.inf, x, torch.nan) for name, x in learned.items()}
    entries = state["logit_change/entries"]
    if bool((entries > 0).any()):
        plain["logit_change"] = torch.sqrt(state["logit_change/squares"] / torch.where(entries > 0, entries, torch.nan))
        plain["logit_change_max"] = state["logit_change/largest"]
    squares = {part: state[name] for part in PARTS if (name := f"{part}_gradient/squares") in state}
    plain["nonfinite"] = measures["nonfinite"][0]
    for part, square in squares.items():
        plain[f"{part}_gradient"] = norm = square.sqrt()
        plain["nonfinite"] = torch.where(norm.isfinite(), plain["nonfinite"], 1.0)
    if len(squares) == len(PARTS):
        value = torch.where(squares["value"] != 0, squares["value"], torch.nan)
        plain["gradient_ratio"] = torch.sqrt((squares["query"] + squares["key"]) / value)
    return measures | {name: (x, None, None) for name, x in plain.items()}


def _measured(layers: Sequence[_Parts | None], heads: Sequence[int]) -> Measured:
    def grid(which: int) -> Grid | None:
        parts = [None if layer is None else layer[which] for layer in layers]
        if all(part is None for part in parts):
            return None
        return [[math.nan] * n if x is None else x.tolist() for x, n in zip(parts, heads, strict=True)]

    value = grid(0)
    assert value is not None
    return Measured(value, grid(1), grid(2))


# -- Changes by the update --------------------------------------------------------------------------------------------
#
# There is no second forward pass. The inputs of every attention module are kept for the first sequence of a step that
# is read; after the update the module's forward runs on them up to the call of its attention function.


@dataclass(frozen=True, eq=False)
class _Inputs:
    """Inputs of an attention module for the first sequence, and the logits that they led to."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    positions: Tensor
    logits: Tensor  # (head, row, key) before the update
    autocast: torch.dtype | None


def _inputs_of(call: HeardCall, positions: Tensor, autocast: torch.dtype | None) -> _Inputs:
    """`autocast` is the type that training computes in: the logits after the update must be rounded like these."""
    tensors = (value for value in (*call.inputs[0], *call.inputs[1].values()) if isinstance(value, Tensor))
    batch = next((len(value) for value in tensors if value.dim()), len(call.query))
    args = tuple(_first(value, batch) for value in call.inputs[0])
    kwargs = {name: _first(value, batch) for name, value in call.inputs[1].items()}
    logits = call.rows(positions, 0, 1).logits(torch.arange(len(positions)))[0]
    return _Inputs(call.module, args, kwargs, positions, logits, autocast)


def _random_states_kept(devices: Iterable[torch.device]) -> ExitStack:
    """Restores the generators of the CPU and of these devices after the block."""
    restore = ExitStack()
    restore.enter_context(torch.random.fork_rng(devices=[]))
    for device in devices:
        # A kind of device with a single generator, such as Apple's, cannot be asked for the one of a device.
        if hasattr(getattr(torch, device.type, None), "device_count") and device.type not in ("cpu", "mps"):
            restore.enter_context(torch.random.fork_rng([device], device_type=device.type))
    return restore


def no_change(heads: int) -> State:
    """For a rank or layer whose inputs were not kept."""
    return change_sums(torch.zeros(heads, 1), torch.zeros(heads, 1, dtype=torch.bool), (1,))


@torch.no_grad()
def _change(listener: Listener, inputs: _Inputs) -> State:
    before = inputs.logits
    # Without its cache: weights that autocast cast before the update must not be reused.
    autocast = (
        torch.autocast(before.device.type, dtype=inputs.autocast, cache_enabled=False) if inputs.autocast else None
    )
    with autocast or nullcontext():
        call = listener.capture(inputs.module, inputs.args, inputs.kwargs)
    if call is None or call.key.shape[-2] != before.shape[-1]:
        return no_change(len(before))
    after = call.rows(inputs.positions).logits(torch.arange(len(inputs.positions)))[0]
    before, after = where_double(before), where_double(after)
    finite = (before.isfinite() & after.isfinite()).flatten(1)
    return change_sums((after - before).flatten(1), finite, (1,))


def change_sums(change: Tensor, counted: Tensor, over: tuple[int, ...]) -> State:
    """Squares, number and largest size of the changes that are counted, by head; `over` are the other dimensions."""
    change = torch.where(counted, change, 0.0).double()
    return {
        "logit_change/squares": change.square().sum(over),
        "logit_change/entries": counted.sum(over).double(),
        "logit_change/largest": torch.where(counted.any(over), change.abs().amax(over), -torch.inf),
    }


def _first(value: Any, batch: int) -> Any:
    """The first sequence of an input of a module; a key cache is left out, since it must not be written again."""
    if isinstance(value, Tensor):
        first = value.detach()[:1] if value.dim() > 1 and len(value) == batch else value.detach()
        # The residual stream may be overwritten in place; masks and positions are not, and are large.
        return first.clone() if first.dim() == 3 and first.is_floating_point() else first
    if isinstance(value, tuple):
        return tuple(_first(part, batch) for part in value)
    return None if "Cache" in type(value).__name__ else value
