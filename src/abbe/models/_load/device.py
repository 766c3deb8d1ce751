"""Devices, precision and memory: what a name means, and what is free for the weights of a model."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..._arguments import shown
from ..._errors import AbbeError
from .._network import dtype_name

DeviceLike = str | torch.device
DtypeLike = str | torch.dtype
DeviceMap = str | Mapping[str, Any]
AUTO, CPU = "auto", "cpu"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")  # maps that accelerate works out itself
_ACCELERATORS = ("cuda", "xpu", "mps")  # in the order in which `auto` looks for them
_KNOWN = (AUTO, CPU, *_ACCELERATORS)


@dataclass(frozen=True)
class Placement:
    """Where a model is read to: one device, or a map over several; and the dtype of its floating-point weights."""

    device: torch.device
    dtype: torch.dtype
    device_map: DeviceMap | None = None


def placement(device: DeviceLike | None, dtype: DtypeLike | None, device_map: DeviceMap | None) -> Placement:
    """Device and dtype, by default the CPU and float32; anything unavailable is refused before a file is read."""
    wanted = as_dtype(torch.float32 if dtype is None else dtype)
    if device_map is None:
        place = as_device(CPU if device is None else device)
        check_has_dtype(place, wanted)
        return Placement(place, wanted)
    if device is not None:
        raise AbbeError(f"device is {shown(str(device))} and device_map is given as well: give one of them")
    return Placement(torch.device(CPU), wanted, _as_map(device_map))


def as_device(given: DeviceLike) -> torch.device:
    """A device by its name, checked to be there.

    Args:
        given: "cpu", "cuda", "cuda:1", "mps", "xpu", a torch.device, or "auto": an accelerator if there is one, else
            the CPU.

    Returns:
        The device.

    Raises:
        AbbeError: it is unknown, or not available here.

    Examples:
        >>> abbe.models.as_device("cpu")
        device(type='cpu')
    """
    if isinstance(given, str) and given == AUTO:
        return torch.device(next((name for name in available() if name != CPU), CPU))
    if not isinstance(given, str | torch.device):
        raise AbbeError(f"device is {shown(given)}, but must be a name such as {', '.join(_KNOWN)}, or a torch.device")
    try:
        device = torch.device(given)
    except RuntimeError:
        raise AbbeError(_unknown("device", str(given), (*_KNOWN[:3], "cuda:1", *_KNOWN[3:]))) from None
    if not _can_compute(device):
        raise AbbeError(f"{device} is not available here; there is: {', '.join(available())}")
    return device


def as_dtype(given: DtypeLike) -> torch.dtype:
    """A floating-point dtype by its name.

    Args:
        given: "float32", "bfloat16", "float16" or "float64", or torch's own.

    Returns:
        The dtype.

    Raises:
        AbbeError: it is none of these.

    Examples:
        >>> abbe.models.as_dtype("bfloat16")
        torch.bfloat16
    """
    if isinstance(given, str):
        name = given.removeprefix("torch.")
        if name not in DTYPES:
            raise AbbeError(_unknown("dtype", given, tuple(DTYPES)))
        return DTYPES[name]
    if not isinstance(given, torch.dtype):
        raise AbbeError(f"dtype is {shown(given)}, but must be a name such as float32 or bfloat16, or a torch.dtype")
    if given not in DTYPES.values():
        raise AbbeError(f"dtype is {given}, which torch cannot compute attention in: choose {', '.join(DTYPES)}")
    return given


def available() -> list[str]:
    """The CPU, and every accelerator that torch sees here."""
    names = [CPU]
    for kind in _ACCELERATORS:
        backend = getattr(torch, kind, None)
        if backend is not None and backend.is_available():  # of Apple's there is at most one
            names += [kind] if kind == "mps" else [f"{kind}:{number}" for number in range(backend.device_count())]
    return names


def check_has_dtype(device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a dtype that the device cannot multiply in."""
    try:
        one = torch.ones(1, 1, dtype=dtype, device=device)
        one @ one
    except (RuntimeError, TypeError, NotImplementedError):
        name = dtype_name(dtype)
        others = " or ".join(other for other in ("float32", "float16") if other != name)
        raise AbbeError(f"{device} cannot compute in {name}: choose {others}, or another device") from None


def _can_compute(device: torch.device) -> bool:
    if device.type in _KNOWN:
        names = available()  # "cuda" stands for the current one
        return str(device) in (*names, *(name.partition(":")[0] for name in names))
    try:  # a backend that registered itself with torch; "meta" holds no numbers
        return float(torch.ones(1, device=device).sum()) == 1
    except (RuntimeError, TypeError, NotImplementedError, AssertionError):
        return False


def _as_map(given: DeviceMap) -> DeviceMap:
    if isinstance(given, str) and given not in SPREADS:
        raise AbbeError(_unknown("device_map", given, SPREADS))
    if not isinstance(given, str | Mapping):
        raise AbbeError(f"device_map is {shown(given)}, but must be one of {', '.join(SPREADS)}, or a mapping")
    if importlib.util.find_spec("accelerate") is None:
        raise AbbeError("device_map needs the package accelerate, which is not installed: pip install accelerate")
    if isinstance(given, str):
        return given
    for place in given.values():
        if place != "disk":
            as_device(torch.device(place) if isinstance(place, int) else place)
    return dict(given)


def _unknown(what: str, given: str, names: tuple[str, ...]) -> str:
    return f"unknown {what} {given!r}: choose one of {', '.join(names)}"


# -- Memory -----------------------------------------------------------------------------------------------------------

_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def check_room(name: str, weights: float, placed: Placement) -> None:
    """Refuse a model whose weights cannot fit, before they are read; an unknown limit passes."""
    if placed.device_map is not None:
        known = [free_memory(torch.device(name)) for name in available()]
        free_on = {"over all devices": None if None in known else sum(filter(None, known))}
    else:  # weights for an accelerator are read into memory first
        free_on = {f"on {device}": free_memory(torch.device(device)) for device in (placed.device, CPU)}
    for where, free in free_on.items():
        if free is not None and weights > free:
            half = weights * 2 / placed.dtype.itemsize
            ways = [f"choose dtype bfloat16 ({megabytes(half)})"] if placed.dtype.itemsize > 2 else []
            ways += ["spread it by device_map auto"] if placed.device_map is None else []
            raise AbbeError(
                f"{name} needs {megabytes(weights)} for its weights in {dtype_name(placed.dtype)}, but "
                f"{megabytes(free)} are free {where}: {', or '.join([*ways, 'take a smaller or quantised model'])}"
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
