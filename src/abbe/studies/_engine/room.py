"""Memory before anything is measured: what model and measures take together, and a refusal if that cannot fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..._errors import AbbeError
from ...models import LoadedModel, free_memory, megabytes
from .cost import bytes_beside, kernels_loaded


def plan_memory(
    model: LoadedModel, lengths: Sequence[int], tokens: int, say: Callable[[str], object], *,
    queries: int | None = None, losses: bool = False,
) -> None:  # fmt: skip
    """Say what model and measures take; refuse windows that cannot fit on a device of the model.

    `tokens` are those of the self-check. Windows are measured one after the other: the longest decides, not how many.
    """
    longest = max(lengths, default=0)
    needed = bytes_beside(model, longest, tokens, queries=queries, losses=losses, warm=kernels_loaded())
    free = {place: free_memory(torch.device(place)) for place in model.devices.split("+")}
    scarce = min((place for place in free if free[place] is not None), key=lambda place: free[place] or 0, default=None)
    known = "" if scarce is None else f"; {megabytes(free[scarce] or 0)} are free on {scarce}"
    say(
        f"{model.name}: {megabytes(_weights(model))} of weights ({model.precision}, {model.devices}), "
        f"about {megabytes(needed)} to measure with{known}"
    )
    if scarce is not None and needed > (free[scarce] or 0):
        raise AbbeError(
            f"{model.name}: windows of {longest:,} tokens need about {megabytes(needed)} beside the model, but "
            f"{megabytes(free[scarce] or 0)} are free on {scarce}: {_advice(model, queries)}"
        )


def _advice(model: LoadedModel, queries: int | None) -> str:
    ways = ["shorter windows (lengths)", "fewer queries" if queries is not None else "some queries instead of all"]
    if model.precision in ("float32", "float64"):
        ways.append("dtype bfloat16")
    return f"ask for {', '.join(ways)}, or spread the model by device_map auto"


def _weights(model: LoadedModel) -> float:
    """Bytes; weights that two parts share count once."""
    return float(sum(one.numel() * one.element_size() for one in model.network.parameters()))
