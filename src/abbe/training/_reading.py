"""One step that is read: sums by layer over the rows and gradients of its micro-batches, and its loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._float64 import where_double
from ..measures import State, merge
from ..models import HeardCall, Listener
from ._rows import query_positions, read_rows, seeded, self_check
from ._update import Update, no_change

PARTS = ("query", "key", "value")


class Gradients:
    """Squares of the gradients of queries, keys and values by head, summed over one step by hooks on tensors.

    A layer that runs again in the backward pass hooks its tensors again. Only one of the two graphs is walked (without
    reentrance the first; with it the second, since the first pass has no graph then), so nothing counts twice.
    """

    def __init__(self, guard: Callable[[Callable[[], None]], None]) -> None:
        self._guard = guard
        self._squares: dict[int, State] = {}

    def watch(self, call: HeardCall) -> None:
        heads = call.query.shape[1]
        for part in PARTS:
            tensor: Any = getattr(call, part)
            if tensor.requires_grad:
                add = partial(self._add, call.layer, part, heads)
                tensor.register_hook(lambda gradient, add=add: self._guard(lambda: add(gradient.detach())))

    def of_layer(self, layer: int) -> State:
        return self._squares.get(layer, {})

    @torch.no_grad()
    def _add(self, layer: int, part: str, heads: int, gradient: Tensor) -> None:
        norms = where_double(torch.linalg.vector_norm(gradient, dim=(0, 2, 3), dtype=torch.float32)).double()
        # Heads that share keys and values also share their gradient.
        squares = norms.square().repeat_interleave(heads // len(norms))
        sums, name = self._squares.setdefault(layer, {}), f"{part}_gradient/squares"
        sums[name] = sums[name] + squares if name in sums else squares


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
        self._gradients, self._update = Gradients(self._guarded), Update()
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
        self._guarded(lambda: self._gradients.watch(call))

    def finish(self, listener: Listener) -> dict[int, State]:
        """Sums of every layer, after the update; called while the listener is open."""
        changes = self._update.changes(listener) if self._keep else {}
        if self.failure is not None:
            raise self.failure
        states: dict[int, State] = {}
        for _, one in sorted(self.passes.items()):
            for layer, state in one.states.items():
                states[layer] = merge(states.get(layer, {}), state)
        return {
            layer: state | self._gradients.of_layer(layer) | changes.get(layer, no_change(self._heads[layer]))
            for layer, state in sorted(states.items())
        }

    def loss(self, reported: Any) -> float | None:
        """What the loop reported, else what the model computed: parts of one sum, or the mean over micro-batches."""
        if reported is not None:
            return float(reported.detach() if isinstance(reported, Tensor) else reported)
        losses = [float(one.loss) for one in self.passes.values() if one.loss is not None]
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
        self._gradients.watch(call)
        self._await_gradient(call.query, call.key, call.value)
        kind = call.query.device.type
        casts = torch.amp.is_autocast_available(kind)
        half = torch.get_autocast_dtype(kind) if casts and torch.is_autocast_enabled(kind) else None
        with torch.autocast(kind, enabled=False) if casts else nullcontext():
            positions = self._of_length(call.query.shape[-2])
            shape = call.query.shape[0], call.query.shape[-2]
            # The mask of the inputs says nothing about a layer of another length.
            real = self._real if self._real is not None and self._real.shape == shape else None
            state = read_rows(call, positions, real, self.sizes, self.seed, self.step)
            states = self._pass.states
            states[call.layer] = merge(states.get(call.layer, {}), state)
            self._heads[call.layer] = call.query.shape[1]
            if not self.passes:  # of the passes before the first backward pass, the last one is kept
                if self._check and (error := self_check(call, positions)) is not None:
                    self.error = max(error, self.error or 0.0)
                if self._keep:
                    self._update.keep(call, positions, half)

    def _of_length(self, length: int) -> Tensor:
        """The same positions in every layer and sequence of a pass."""
        if length not in self._positions:
            generator = seeded(self.seed, self.step, f"rows of pass {self._begun}, length {length}")
            self._positions[length] = query_positions(length, self.wanted, generator)
        return self._positions[length]


class RunningLoss:
    """The mean loss since the last step that was read; its sum is fetched from the device on such steps only."""

    def __init__(self) -> None:
        self._sum: Any = 0.0
        self._steps = 0

    def add(self, loss: Any) -> None:
        if loss is not None:
            self._sum = self._sum + (loss.detach() if isinstance(loss, Tensor) else float(loss))
            self._steps += 1

    def take(self, otherwise: float | None) -> float | None:
        """The mean so far, or `otherwise` if no step had a loss; then it starts again."""
        mean = float(self._sum) / self._steps if self._steps else otherwise
        self._sum, self._steps = 0.0, 0
        return mean
