"""Cost of a study: operations and bytes of windows, the line shown before a run, and a refusal of what cannot fit.

The cost of a pass has a part that is linear in the length (the matrices) and a quadratic one (attention); the measures
cost time and memory per sampled query and key. Seconds come from rates: here from one timed pass of the model
itself, in `abbe cost` from a calibration of the machine.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from .._errors import AbbeError
from ..models import LoadedModel, Window, checked_logits, free_memory, megabytes, shape_of
from ..words.numbers import about, many
from .loss import LOGITS_AT_ONCE
from .window import check_tokens, rows_at_once

DIAGNOSIS = 1.5  # time with measures over time without; `make bench ARGS="--part diagnose"` measures it
CHECKED = 128  # tokens of a self-check

# Bytes, measured as the peak of separate processes: one test compares estimate and peak of three models.
KERNELS = 150e6  # numba, compiled kernels and their mapped libraries, once per process: 110 to 190 MB
_PER_MEASURED_LOGIT = 36  # of a block: logits, weights, orders, and the dot products of all set sizes
_PER_COMPARED_LOGIT = 8  # float32, of two passes
_PER_PIECE = 22e6  # of the comparison, in float64
_PER_LOST_LOGIT = 8  # float32, and its logarithm
_STATES = 10  # as large as the hidden states, at once within a layer
_FLOAT = 4


@dataclass(frozen=True)
class Cost:
    """An estimate: seconds, and megabytes beyond the model."""

    windows: int
    tokens: int
    seconds: float
    megabytes: float

    def __str__(self) -> str:
        needs = f"about {about(self.seconds)} and {self.megabytes:.0f} MB on top of the model"
        return f"{many(self.windows, 'window')}, {self.tokens:,} tokens: {needs}"


class Memory(NamedTuple):
    """Bytes beyond the model: of a pass and its measures on the largest window, and the peak of the whole run."""

    activations: float
    measures: float
    peak: float


def estimate(
    model: LoadedModel, lengths: Sequence[int], tokens: int, seconds: float, overhead: float = DIAGNOSIS, *,
    queries: int | None = None, losses: bool = False, warm: bool = False,
) -> Cost:  # fmt: skip
    """Scale the time of a forward pass on this many tokens to windows of these lengths, by operations.

    `queries` per window are measured (None: all). `losses` need the logits of all tokens. In a `warm` process the
    kernels are loaded already.
    """
    shape = shape_of(model.network, model.kind)
    timed = shape.operations(tokens) + shape.attention(tokens)
    needed = sum(shape.operations(length, losses) + shape.attention(length) for length in lengths)
    memory = memory_of(model, max(lengths, default=0), queries, losses=losses, checked=tokens, warm=warm)
    return Cost(len(lengths), sum(lengths), overhead * (seconds / timed) * needed, memory.peak / 1e6)


def kernels_loaded() -> bool:
    return "numba" in sys.modules


def memory_of(
    model: LoadedModel, length: int, queries: int | None, *, losses: bool = False, checked: int = CHECKED,
    size: int = _FLOAT, warm: bool = False,
) -> Memory:  # fmt: skip
    """Memory for windows of this length at batch 1, in a network with numbers of `size` bytes; measures are float32."""
    shape = shape_of(model.network, model.kind)

    def activations(tokens: int) -> float:
        """Activations of one layer; only the hidden states survive from layer to layer."""
        mask = tokens * tokens if shape.reach else 0
        return float(size * tokens * (_STATES * shape.width + 3 * shape.mlp) + mask)

    compared = checked_logits(model.network, checked)
    check = compared * _PER_COMPARED_LOGIT + min(1.0, compared / (1 << 20)) * _PER_PIECE
    rows = min(queries or length, length, rows_at_once(shape.heads, max(1, length)))
    measured = rows * length * shape.heads * _PER_MEASURED_LOGIT
    if losses:
        measured += min(LOGITS_AT_ONCE, length * shape.vocabulary) * _PER_LOST_LOGIT
    # The self-check comes before the windows; the kernels stay.
    largest = max(check + activations(checked), activations(length) + float(measured))
    return Memory(activations(length), float(measured), largest + (0.0 if warm else KERNELS))


def plan_memory(
    model: LoadedModel, windows: Sequence[Window], say: Callable[[str], object], *, longest: int = 0,
    queries: int | None = None, losses: bool = False,
) -> None:  # fmt: skip
    """Announce the memory of model and measures; refuse windows that cannot fit on a device of the model.

    Windows are measured one by one: the longest decides, not how many; `longest` if something else is longer.
    """
    longest, checked = max(longest, *(window.length for window in windows)), len(check_tokens(model, windows))
    needed = memory_of(model, longest, queries, losses=losses, checked=checked, warm=kernels_loaded()).peak
    by_device = {device: free_memory(torch.device(device)) for device in model.devices.split("+")}
    known = [(free, device) for device, free in by_device.items() if free is not None]
    free, device = min(known, key=lambda pair: pair[0], default=(None, ""))
    weights = sum(one.numel() * one.element_size() for one in model.network.parameters())  # shared ones count once
    say(
        f"{model.name}: {megabytes(weights)} of weights ({model.precision}, {model.devices}), "
        f"{megabytes(needed)} to measure with" + ("" if free is None else f", {megabytes(free)} free")
    )
    if free is not None and needed > free:
        ways = ["shorter windows (lengths)", "some queries instead of all" if queries is None else "fewer queries"]
        ways += ["dtype bfloat16"] if model.precision in ("float32", "float64") else []
        raise AbbeError(
            f"{model.name}: windows of {longest:,} tokens need about {megabytes(needed)} on top of the model, but "
            f"{megabytes(free)} are free on {device}: ask for {', '.join(ways)}, or spread the model by device_map auto"
        )


class PeakMemory:
    """Peak memory of the process since creation, in MB beyond its initial size; None if unknown."""

    def __init__(self) -> None:
        # Return freed memory to the system: reused, it would not count as extra. Only GNU's C library can.
        with suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        self._before = _megabytes("VmRSS")

    def extra(self) -> float | None:
        peak = _megabytes("VmHWM")
        return None if peak is None or self._before is None else max(0.0, round(peak - self._before, 1))


def _megabytes(entry: str) -> float | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(entry)), None)
