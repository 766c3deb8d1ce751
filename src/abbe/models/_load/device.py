"""Devices and precision: what a name means, and where the parts of a model lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

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


_PACKED = (torch.int8, torch.uint8, torch.int32)  # quantised weights; other integers are positions of tokens


def place_of(module: nn.Module) -> torch.device | None:
    """The device on which a module computes; None if it has no weights."""
    for part in module.modules():
        weight = next(chain(part.parameters(recurse=False), part.buffers(recurse=False)), None)
        if weight is not None:
            return _runs_on(part) if weight.is_meta else weight.device
    return None


def input_device(network: Any) -> torch.device:
    """Where tokens go: to the device of the embedding.

    Args:
        network: a transformers model.

    Returns:
        The device.

    Examples:
        >>> abbe.models.input_device(abbe.load("embedded").network)
        device(type='cpu')
    """
    embedding = None
    with suppress(NotImplementedError, AttributeError):  # of two towers, for example
        embedding = network.get_input_embeddings()
    place = place_of(embedding) if isinstance(embedding, nn.Module) else None
    return place or place_of(network) or torch.device("cpu")


def devices_of(network: nn.Module) -> str:
    holding = (part for part in network.modules() if next(part.parameters(recurse=False), None) is not None)
    return "+".join(sorted({str(place) for part in holding if (place := place_of(part)) is not None})) or "cpu"


def dtypes_of(network: nn.Module) -> str:
    packed = (one for one in network.buffers() if one.dim() > 1 and one.dtype in _PACKED)
    dtypes = {dtype_name(one.dtype) for one in (*network.parameters(), *packed)}
    method = quantised_by(network)
    # Some packages show their packed weights with the dtype that they unpack them to.
    return "+".join(sorted(dtypes)) + (f" ({method})" if method else "")


def quantised_by(network: Any) -> str:
    """The method that a checkpoint names, such as "bitsandbytes"; empty for plain weights."""
    settings = getattr(getattr(network, "config", None), "quantization_config", None)
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    return "" if method is None else str(getattr(method, "value", method))


def weights_in_memory(part: nn.Module) -> AbstractContextManager[object]:
    """Inside, the weights of this module that accelerate has offloaded are in memory."""
    if not any(one.is_meta for one in part.parameters(recurse=False)):
        return nullcontext()
    accelerate: Any = import_module("accelerate.utils")  # installed, since its hooks are there
    context: AbstractContextManager[object] = accelerate.align_module_device(part, "cpu")
    return context


def stored_bytes(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor; of a quantised one, which holds others, the bytes of these."""
    holder: Any = tensor
    if is_traceable_wrapper_subclass(holder):
        for name in holder.__tensor_flatten__()[0]:
            yield from stored_bytes(getattr(tensor, name))
        return
    yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _runs_on(part: nn.Module) -> torch.device | None:
    hook = getattr(part, "_hf_hook", None)
    for one in (hook, *getattr(hook, "hooks", ())):
        if (device := getattr(one, "execution_device", None)) is not None:
            return torch.device(device)
    return None
