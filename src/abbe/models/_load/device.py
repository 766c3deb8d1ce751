"""Devices and precisions by name: those of torch, or an error that lists what is available here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from ..._arguments import shown
from ..._errors import AbbeError

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
    """By default the CPU and float32; anything unavailable is refused before a file is read."""
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
    if not given.is_floating_point:
        raise AbbeError(f"dtype is {given}, but weights need a floating-point one, such as torch.float32")
    if given not in DTYPES.values():
        raise AbbeError(f"dtype is {given}, which torch stores but cannot compute with: choose {', '.join(DTYPES)}")
    return given


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def available() -> list[str]:
    """The CPU, and every accelerator that torch sees here."""
    return [CPU, *_accelerators()]


def check_has_dtype(device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a dtype that the device cannot multiply in."""
    try:
        one = torch.ones(1, 1, dtype=dtype, device=device)
        one @ one
    except (RuntimeError, TypeError, NotImplementedError):
        name = dtype_name(dtype)
        others = " or ".join(other for other in ("float32", "float16") if other != name)
        raise AbbeError(f"{device} cannot compute in {name}: choose {others}, or another device") from None


def _accelerators() -> Iterator[str]:
    for kind in _ACCELERATORS:
        backend = getattr(torch, kind, None)
        if backend is None or not backend.is_available():
            continue
        if kind == "mps":  # at most one
            yield kind
        else:
            yield from (f"{kind}:{number}" for number in range(backend.device_count()))


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
    if find_spec("accelerate") is None:
        raise AbbeError("device_map needs the package accelerate, which is not installed: pip install accelerate")
    if isinstance(given, str):
        return given
    for place in given.values():
        if place != "disk":
            as_device(torch.device(place) if isinstance(place, int) else place)
    return dict(given)


def _unknown(what: str, given: str, names: tuple[str, ...]) -> str:
    return f"unknown {what} {given!r}: choose one of {', '.join(names)}"
