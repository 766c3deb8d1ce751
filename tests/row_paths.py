"""The two implementations of a row-wise map: the float64 reference and the float32 kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Path:
    """One of the implementations: its dtype, and what counts as equal in it (weights are at most about 1)."""

    dtype: torch.dtype
    tolerance: float


REFERENCE = Path(torch.float64, 1e-11)
KERNEL = Path(torch.float32, 8 * torch.finfo(torch.float32).eps)
