"""How far one update moves the logits: the same rows of the same inputs, before and after the optimizer's step.

There is no second forward pass. The inputs of every attention module are kept for the first sequence of a step
that is read; after the update the module's forward runs on them up to the call of its attention function.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._float64 import where_double
from ..measures import State
from ..models import HeardCall, Listener


@dataclass(frozen=True, eq=False)
class _Inputs:
    """Inputs of an attention module for the first sequence, and the logits that they led to."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    positions: Tensor
    logits: Tensor  # (head, row, key) before the update
    autocast: torch.dtype | None


class Update:
    """Inputs and logits of the first sequence of one step."""

    def __init__(self) -> None:
        self._inputs: dict[int, _Inputs] = {}

    def keep(self, call: HeardCall, positions: Tensor, autocast: torch.dtype | None) -> None:
        """`autocast` is the type that training computes in: the logits after the update must be rounded like these."""
        batch = _batch(call)
        args = tuple(_first(value, batch) for value in call.inputs[0])
        kwargs = {name: _first(value, batch) for name, value in call.inputs[1].items()}
        logits = call.rows(positions, 0, 1).logits(torch.arange(len(positions)))[0]
        self._inputs[call.layer] = _Inputs(call.module, args, kwargs, positions, logits, autocast)

    def changes(self, listener: Listener) -> dict[int, State]:
        """Squares, number and largest size of the changes of every layer that was kept, by head."""
        # Nothing before the attention function is known to draw random numbers; if it does, training must not notice.
        with _random_states_kept({inputs.logits.device for inputs in self._inputs.values()}):
            return {layer: _change(listener, inputs) for layer, inputs in self._inputs.items()}


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
    return {
        "logit_change/squares": torch.zeros(heads, dtype=torch.float64),
        "logit_change/entries": torch.zeros(heads, dtype=torch.float64),
        "logit_change/largest": torch.full((heads,), -torch.inf, dtype=torch.float64),
    }


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


def _batch(call: HeardCall) -> int:
    tensors = (value for value in (*call.inputs[0], *call.inputs[1].values()) if isinstance(value, Tensor))
    return next((len(value) for value in tensors if value.dim()), len(call.query))


def _first(value: Any, batch: int) -> Any:
    """The first sequence of an input of a module; a key cache is left out, since it must not be written again."""
    if isinstance(value, Tensor):
        first = value.detach()[:1] if value.dim() > 1 and len(value) == batch else value.detach()
        # The residual stream may be overwritten in place; masks and positions are not, and are large.
        return first.clone() if first.dim() == 3 and first.is_floating_point() else first
    if isinstance(value, tuple):
        return tuple(_first(part, batch) for part in value)
    return None if "Cache" in type(value).__name__ else value
