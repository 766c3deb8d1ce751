"""Which rows the Triton kernels take, and how they are divided over programs; triton itself is not imported here."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch
from torch import Tensor

MAPS = ("sparsemax", "entmax15", "entmax")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DEVICES = ("cuda",)  # torch's name for ROCm, too
MOST_KEYS = 1 << 17  # the longest row that was tested
_WHOLE = 8192  # the longest row that fits into the registers of one program
_LONG_BLOCK = 4096  # longer rows are read in blocks of this size
_SHORTEST = 32  # the smallest block: one warp
_TILE = 1024  # short rows share a program until it holds this many logits
_PER_WARP = 512  # 16 logits per thread; half as many for several rows, whose row numbers take registers, too


def _is_installed() -> bool:
    """Whether triton can be imported, without importing it."""
    try:
        return importlib.util.find_spec("triton") is not None
    except (ImportError, ValueError):  # a finder refuses it, or the module has no spec
        return False


INSTALLED = _is_installed()  # once: torch.compile cannot trace the call


@dataclass(frozen=True)
class Plan:
    """A program holds `rows` rows of `block` keys; unless `whole`, a row is read block by block in each round."""

    whole: bool
    rows: int
    block: int
    warps: int


def plan(keys: int) -> Plan:
    block = _LONG_BLOCK if keys > _WHOLE else max(_SHORTEST, 1 << (keys - 1).bit_length())
    rows = max(1, _TILE // block)
    return Plan(keys <= _WHOLE, rows, block, rows * block // (_PER_WARP if rows == 1 else _PER_WARP // 2))


def all_plans() -> list[Plan]:
    """Every plan that `plan` can make."""
    lengths = [_SHORTEST << i for i in range((_WHOLE // _SHORTEST).bit_length())]
    return [plan(keys) for keys in (*lengths, _WHOLE + 1)]


def takes(name: str, logits: Tensor) -> bool:
    """Whether there is a Triton kernel for this map and these rows, and triton to compile it."""
    return (
        logits.device.type in DEVICES
        and name in MAPS
        and logits.dtype in DTYPES
        and 0 < logits.shape[-1] <= MOST_KEYS
        and INSTALLED
    )
