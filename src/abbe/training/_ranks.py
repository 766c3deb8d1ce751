"""Sums over all processes of a distributed run, once per step that is read and outside of all hooks.

What is special: every rank takes part in every exchange, even if its reading failed: it says so in the first, small
exchange, and all ranks stop measuring together. No rank ever waits for one that has stopped measuring.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._errors import AbbeError
from ..measures import State

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
    if world() == 1:
        if interrupted:
            raise Interrupted
        if states is None:
            raise AbbeError("the reading failed")
        return _on_cpu(states), loss
    names = [] if states is None else [(layer, name) for layer, state in states.items() for name in sorted(state)]
    _agree(_INTERRUPTED if interrupted else float(states is not None), names, states, device)
    assert states is not None
    largest = [(layer, name) for layer, name in names if name.endswith("/largest")]
    summed = [(layer, name) for layer, name in names if not name.endswith("/largest")]
    states = _on_cpu(states)
    _exchange(states, largest, dist.ReduceOp.MAX, device)
    _exchange(states, summed, dist.ReduceOp.SUM, device)
    # The loss of the joined batch is the mean of the ranks' losses, so a rank's gradient counts by 1/world.
    for layer, name in summed:
        if name.endswith("_gradient/squares"):
            states[layer][name] /= world() ** 2
    total = torch.tensor([0.0 if loss is None else loss, float(loss is not None)], dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return states, float(total[0] / total[1]) if total[1] else None


def _on_cpu(states: States) -> States:
    return {layer: {name: x.cpu().double() for name, x in state.items()} for layer, state in states.items()}


def _agree(ready: float, names: Sequence[tuple[int, str]], states: States | None, device: torch.device) -> None:
    """Raise on all ranks unless all have sums of the same layout."""
    shapes = [(layer, name, tuple(states[layer][name].shape)) for layer, name in names] if states else []
    layout = zlib.crc32(repr(shapes).encode())
    least = torch.tensor([ready, float(layout), -float(layout)], dtype=torch.float64, device=device)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    if least[0] == 0:
        raise AbbeError("the reading failed on a rank" if ready else "the reading failed")
    if least[0] == _INTERRUPTED:
        raise Interrupted
    if least[1] != -least[2]:  # the least and the largest differ
        raise AbbeError("the ranks have read different layers")


def _exchange(states: States, names: Sequence[tuple[int, str]], how: Any, device: torch.device) -> None:
    if not names:
        return
    parts = [states[layer][name] for layer, name in names]
    joined = torch.cat([part.reshape(-1) for part in parts]).to(device)
    dist.all_reduce(joined, how)
    pieces: Sequence[Tensor] = torch.split(joined.cpu(), [part.numel() for part in parts])
    for (layer, name), piece, part in zip(names, pieces, parts, strict=True):
        states[layer][name] = piece.view(part.shape)
