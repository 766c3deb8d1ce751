"""Which devices have float64: measures and self-checks sum in it, and some devices do not support it."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache
def has_float64(device: torch.device) -> bool:
    """Whether a device computes in double precision; Apple's GPUs and some of Intel's do not."""
    try:
        return bool((torch.ones(1, dtype=torch.float64, device=device) + 1).dtype == torch.float64)
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def where_double(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy on the CPU if its device has no float64."""
    return tensor if tensor.device.type == "cpu" or has_float64(tensor.device) else tensor.cpu()
