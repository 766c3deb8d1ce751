"""Tensors: devices without float64, random numbers that depend only on a name, and a checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


@lru_cache
def has_float64(device: torch.device) -> bool:
    """Whether a device computes in double precision, as measures sum; Apple's GPUs and some of Intel's do not."""
    try:
        return bool((torch.ones(1, dtype=torch.float64, device=device) + 1).dtype == torch.float64)
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def where_double(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy on the CPU if its device has no float64."""
    return tensor if tensor.device.type == "cpu" or has_float64(tensor.device) else tensor.cpu()


def generator_named(name: str) -> torch.Generator:
    """The same name gives the same numbers, so that draws do not depend on the order of the work."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return torch.Generator("cpu").manual_seed(number & (2**63 - 1))  # torch takes seeds of 63 bits


def checksum(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    """sha256 of names, dtypes, shapes and bytes, sorted by name, and of the facts; a file's layout does not matter."""
    total = hashlib.sha256(json.dumps(facts).encode())
    for key, tensor in sorted(tensors.items()):
        total.update(json.dumps([key, str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(stored_bytes(tensor))
    return total.hexdigest()


def stored_bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
