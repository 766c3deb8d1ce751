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

import torch

from .._errors import AbbeError
from ..models import LoadedModel, Shape, checked_logits, free_memory, megabytes, shape_of
from ..words.numbers import about, many
from .loss import LOGITS_AT_ONCE
from .window import rows_at_once

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

    def __add__(self, other: Cost) -> Cost:
        """One after the other."""
        megabytes = max(self.megabytes, other.megabytes)
        return Cost(self.windows + other.windows, self.tokens + other.tokens, self.seconds + other.seconds, megabytes)


@dataclass(frozen=True)
class Memory:
    """Bytes beyond the model: of a pass and its measures on the largest window, or of the self-check before it."""

    activations: float
    measures: float
    check: float

    @property
    def peak(self) -> float:
        return max(self.check, self.activations + self.measures)


def estimate(
    model: LoadedModel, lengths: Sequence[int], tokens: int, seconds: float, overhead: float = DIAGNOSIS, *,
    queries: int | None = None, losses: bool = False, warm: bool = False, head: bool = True,
) -> Cost:  # fmt: skip
    """Scale the time of a forward pass on this many tokens to windows of these lengths, by operations.

    `queries` per window are measured (None: all). `losses` need the logits of all tokens. In a `warm` process the
    kernels are loaded already. `head` says whether the timed pass computed logits.
    """
    shape = shape_of(model.network, model.kind)
    per_operation = seconds / _operations(shape, tokens, head)
    needed = overhead * per_operation * sum(_operations(shape, length, losses) for length in lengths)
    memory = bytes_beside(model, max(lengths, default=0), tokens, queries=queries, losses=losses, warm=warm)
    return Cost(len(lengths), sum(lengths), needed, memory / 1e6)


def bytes_beside(
    model: LoadedModel, length: int, tokens: int, *, queries: int | None = None, losses: bool = False,
    warm: bool = False,
) -> float:  # fmt: skip
    """Memory beyond the model for windows of at most this length, after a self-check on this many tokens."""
    return memory_of(model, length, queries, losses=losses, checked=tokens).peak + (0 if warm else KERNELS)


def kernels_loaded() -> bool:
    return "numba" in sys.modules


def memory_of(
    model: LoadedModel, length: int, queries: int | None, *, losses: bool = False, checked: int = CHECKED,
    size: int = _FLOAT,
) -> Memory:  # fmt: skip
    """For windows of this length at batch 1, in a network with numbers of `size` bytes; measures are float32."""
    shape = shape_of(model.network, model.kind)
    compared = checked_logits(model.network, checked)
    check = compared * _PER_COMPARED_LOGIT + min(1.0, compared / (1 << 20)) * _PER_PIECE
    rows = min(queries or length, length, rows_at_once(shape.heads, max(1, length)))
    measured = rows * length * shape.heads * _PER_MEASURED_LOGIT
    if losses:
        measured += min(LOGITS_AT_ONCE, length * shape.vocabulary) * _PER_LOST_LOGIT
    return Memory(_pass(shape, length, size), float(measured), check + _pass(shape, checked, size))


def _operations(shape: Shape, length: int, head: bool) -> float:
    return shape.operations(length, head) + shape.attention(length)


def _pass(shape: Shape, length: int, size: int) -> float:
    """The activations of one layer; only the hidden states survive from layer to layer."""
    mask = length * length if shape.reach else 0
    return float(size * length * (_STATES * shape.width + 3 * shape.mlp) + mask)


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
