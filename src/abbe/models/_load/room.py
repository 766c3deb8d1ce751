"""Memory: how much a model's weights will take, read from the headers of its files, and how much is free for them."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ..._errors import AbbeError
from .device import CPU, Placement, available, dtype_name
from .folder import Header

_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_FLOATS = ("F64", "F32", "F16", "BF16")  # read in the requested dtype; all others stay as they are
_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16}


def check_room(name: str, weights: float | None, placed: Placement) -> None:
    """Refuse a model whose weights cannot fit, before they are read; None, or an unknown limit, passes."""
    if weights is None:
        return
    # Weights for an accelerator are read into memory first.
    through = [torch.device(CPU)] if placed.device_map is None and placed.device.type != CPU else []
    for device in (placed.device, *through):
        free = free_everywhere() if placed.device_map is not None else free_memory(device)
        if free is not None and weights > free:
            where = "over all devices" if placed.device_map is not None else f"on {device}"
            raise AbbeError(
                f"{name} needs {megabytes(weights)} for its weights in {dtype_name(placed.dtype)}, but "
                f"{megabytes(free)} are free {where}: {_advice(weights, placed)}"
            )


def megabytes(count: float) -> str:
    """A number of bytes for people.

    Args:
        count: of bytes, >= 0.

    Returns:
        Megabytes, or gigabytes from 1e9 on.

    Examples:
        >>> abbe.models.megabytes(38e6), abbe.models.megabytes(1.6e9)
        ('38 MB', '1.6 GB')
    """
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.3g} GB"


def _advice(weights: float, placed: Placement) -> str:
    half = weights * 2 / placed.dtype.itemsize
    ways = [f"choose dtype bfloat16 ({megabytes(half)})"] if placed.dtype.itemsize > 2 else []
    ways += ["spread it by device_map auto"] if placed.device_map is None else []
    return ", or ".join([*ways, "take a smaller or quantised model"])


def weight_bytes(header: Header, dtype: torch.dtype) -> float:
    """Size of the weights with these headers, read in this dtype."""
    total = 0.0
    for entry in header.values():
        bits = 8 * dtype.itemsize if entry["dtype"] in _FLOATS else _BITS.get(entry["dtype"], 8)
        total += math.prod(entry["shape"]) * bits / 8
    return total


def free_everywhere() -> float | None:
    """Free bytes of memory and all accelerators together; None if one is unknown."""
    free = [free_memory(torch.device(name)) for name in available()]
    return None if None in free else float(sum(one for one in free if one is not None))


def free_memory(device: torch.device) -> float | None:
    """Bytes that can still be taken on a device, within the limits of a container.

    Args:
        device: the CPU or an accelerator.

    Returns:
        Bytes; None if unknown.

    Examples:
        >>> free = abbe.models.free_memory(torch.device("cpu"))
        >>> free is None or free > 0
        True
    """
    if device.type == CPU:
        limits = [one for one in (_available(), _left_of_group()) if one is not None]
        return min(limits, default=None)
    backend: Any = getattr(torch, device.type, None)
    with suppress(RuntimeError, AttributeError, NotImplementedError, AssertionError, TypeError):
        if device.type == "mps":
            return float(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
        free = backend.mem_get_info(device)[0]
        # Memory that torch reserves is free for torch, though the driver counts it as used.
        return float(free + backend.memory_reserved(device) - backend.memory_allocated(device))
    return None


def _available() -> float | None:
    """What can be allocated without swapping, according to the system."""
    with suppress(OSError, ValueError, IndexError):
        for line in _MEMINFO.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024.0
    return None


def _left_of_group() -> float | None:
    """What the limits of a container and of the groups around it leave; None without a limit."""
    group = Path()
    with suppress(OSError, ValueError, IndexError):
        group = Path(_GROUP.read_text(encoding="utf-8").splitlines()[-1].split(":")[2].lstrip("/"))
    if ".." in group.parts:  # outside of this view: inside a container its own group is the root
        group = Path()
    left = [_left_of(_GROUPS / one) for one in (group, *group.parents)]
    return min((one for one in left if one is not None), default=None)


def _left_of(folder: Path) -> float | None:
    """What the limit of one group leaves; None without a limit. Cached files do not count as used."""
    with suppress(OSError, ValueError, KeyError):
        limit = int((folder / "memory.max").read_text())  # "max" is no number
        entries = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = {name: int(value) for name, value in entries}["inactive_file"]
        return float(limit - int((folder / "memory.current").read_text()) + cached)
    return None
