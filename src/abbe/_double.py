"""Where float64 is: sums of measures and self-checks are taken in it, and some devices have none."""

from __future__ import annotations

from torch import Tensor

WITHOUT = frozenset({"mps"})  # Apple's GPUs, as torch sees them


def where_double(tensor: Tensor) -> Tensor:
    """The tensor itself, or its copy on the CPU if its device knows no float64."""
    return tensor.cpu() if tensor.device.type in WITHOUT else tensor
