"""Launch the kernels over rows; the first that cannot be compiled or launched turns them all off, with a warning."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch import Tensor

from ..._kernels.switch import VARIABLE, KernelsBrokenError, reason_of
from .choice import plan

_broken = False


def given_up() -> bool:
    return _broken


def forward_rows(name: str, rows: Tensor, params: Tensor, weights: Tensor) -> None:
    """Weights of rows (R, L), params (1 or R, P)."""
    params = params.float()
    _launch("forward", (rows, params, weights), rows, params, MAP=name)


def backward_rows(
    name: str, grad: Tensor, rows: Tensor, weights: Tensor, params: Tensor, grad_logits: Tensor, grad_params: Tensor
) -> None:
    """grad_params is (R, P) in float32, or (0, P) if it is not needed."""
    params = params.float()
    arrays = (grad, rows, weights, params, grad_logits, grad_params)
    _launch("backward", arrays, rows, params, MAP=name, WITH_PARAMS=len(grad_params) > 0)


def _launch(which: str, arrays: tuple[Tensor, ...], rows: Tensor, params: Tensor, **constants: Any) -> None:
    count, keys = rows.shape
    if not count:
        return
    if _broken:
        raise KernelsBrokenError
    tiling = plan(keys)
    step = params.shape[-1] if len(params) > 1 else 0
    grid = ((count + tiling.rows - 1) // tiling.rows,)
    try:
        with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]  # triton launches on the current device
            _kernel(which)[grid](
                *arrays, count, keys, step, **constants,
                WHOLE=tiling.whole, ROWS=tiling.rows, BLOCK=tiling.block, num_warps=tiling.warps,
            )  # fmt: skip
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # from compiler or driver: triton has no common error type
        _give_up(error)
        raise KernelsBrokenError from error


def _kernel(which: str) -> Any:
    return getattr(importlib.import_module(f"{__package__}.{which}"), which)  # imports triton


def _give_up(error: Exception) -> None:
    global _broken
    if _broken:
        return
    _broken = True
    warnings.warn(
        f"abbe continues with torch operations, without its Triton kernels: {reason_of(error)} "
        f"({VARIABLE}=off silences this)",
        RuntimeWarning,
        stacklevel=2,
    )
