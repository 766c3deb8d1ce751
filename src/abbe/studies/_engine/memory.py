"""Memory: an estimate before anything is measured, with a refusal if it cannot fit, and the peak of this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from ..._errors import AbbeError
from ...models import LoadedModel, free_memory, megabytes
from .cost import bytes_beside, kernels_loaded

_STATUS = Path("/proc/self/status")


def plan_memory(
    model: LoadedModel, lengths: Sequence[int], tokens: int, say: Callable[[str], object], *,
    queries: int | None = None, losses: bool = False,
) -> None:  # fmt: skip
    """Announce the memory of model and measures; refuse windows that cannot fit on a device of the model.

    `tokens` is the length of the self-check. Windows are measured one by one: the longest decides, not how many.
    """
    longest = max(lengths, default=0)
    needed = bytes_beside(model, longest, tokens, queries=queries, losses=losses, warm=kernels_loaded())
    by_device = {device: free_memory(torch.device(device)) for device in model.devices.split("+")}
    known = [(free, device) for device, free in by_device.items() if free is not None]
    free, device = min(known, key=lambda pair: pair[0], default=(None, ""))
    say(
        f"{model.name}: {megabytes(_weights(model))} of weights ({model.precision}, {model.devices}), "
        f"about {megabytes(needed)} to measure with"
        + ("" if free is None else f"; {megabytes(free)} are free on {device}")
    )
    if free is not None and needed > free:
        raise AbbeError(
            f"{model.name}: windows of {longest:,} tokens need about {megabytes(needed)} on top of the model, but "
            f"{megabytes(free)} are free on {device}: {_advice(model, queries)}"
        )


def _advice(model: LoadedModel, queries: int | None) -> str:
    ways = ["shorter windows (lengths)", "fewer queries" if queries is not None else "some queries instead of all"]
    if model.precision in ("float32", "float64"):
        ways.append("dtype bfloat16")
    return f"ask for {', '.join(ways)}, or spread the model by device_map auto"


def _weights(model: LoadedModel) -> float:
    """Bytes; weights that two parts share count once."""
    return float(sum(one.numel() * one.element_size() for one in model.network.parameters()))


class PeakMemory:
    """Peak memory of the process since creation, in MB beyond its initial size; None if unknown."""

    def __init__(self) -> None:
        _give_back()
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        self._before = _megabytes("VmRSS")

    def extra(self) -> float | None:
        peak = _megabytes("VmHWM")
        return None if peak is None or self._before is None else max(0.0, round(peak - self._before, 1))


def _give_back() -> None:
    """Return freed memory to the system: reused, it would not count as extra. Only GNU's C library can."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _megabytes(entry: str) -> float | None:
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(entry)), None)
