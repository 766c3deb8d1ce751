"""Sums over all processes of a distributed run, once per step that is read and outside of all hooks.

What is special: every rank takes part in every exchange, also one whose reading failed: it says so in the first, small
exchange, and all ranks stop measuring together. No rank ever waits for one that has gone silent.
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
_INTERRUPTED = 0.5  # between failed, 0, and ready, 1: what the least of the ranks says holds for all


def world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


class Interrupted(Exception):
    """A pass of this step ended by an exception, here or on another rank: its numbers would not be complete."""


def over_ranks(
    states: States | None, loss: float | None, device: torch.device, interrupted: bool = False
) -> tuple[States, float | None]:
    """The sums of all ranks, and their mean loss; None says that this rank has nothing because its reading failed."""
    if world() == 1:
        if interrupted:
            raise Interrupted
        if states is None:
            raise AbbeError("the reading failed")
        return {layer: _on_cpu(state) for layer, state in states.items()}, loss
    names = [] if states is None else [(layer, name) for layer, state in states.items() for name in sorted(state)]
    _agree(_INTERRUPTED if interrupted else float(states is not None), names, states, device)
    assert states is not None
    largest = [one for one in names if one[1].endswith("/largest")]
    summed = [one for one in names if one not in set(largest)]
    states = {layer: _on_cpu(state) for layer, state in states.items()}
    _exchange(states, largest, dist.ReduceOp.MAX, device)
    _exchange(states, summed, dist.ReduceOp.SUM, device)
    # The loss of the joined batch is the mean of the ranks' losses, so a rank's gradient counts by 1/world.
    for layer, name in summed:
        if name.endswith("_gradient/squares"):
            states[layer][name] /= world() ** 2
    total = torch.tensor([0.0 if loss is None else loss, float(loss is not None)], dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return states, float(total[0] / total[1]) if total[1] else None


def _on_cpu(state: State) -> State:
    return {name: x.cpu().double() for name, x in state.items()}


def _agree(ready: float, names: Sequence[tuple[int, str]], states: States | None, device: torch.device) -> None:
    """Whether all ranks have sums of the same layout."""
    shapes = [(layer, name, tuple(states[layer][name].shape)) for layer, name in names] if states else []
    layout = zlib.crc32(repr(shapes).encode())
    said = torch.tensor([ready, float(layout), -float(layout)], dtype=torch.float64, device=device)
    dist.all_reduce(said, dist.ReduceOp.MIN)
    if said[0] == 0:
        raise AbbeError("the reading failed on a rank" if ready else "the reading failed")
    if said[0] == _INTERRUPTED:
        raise Interrupted
    if said[1] != -said[2]:
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
