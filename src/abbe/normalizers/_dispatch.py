"""When kernels are used: for enough logits outside of torch.func transforms, which all go through the reference."""

from __future__ import annotations

from contextvars import ContextVar, Token

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._kernels.switch import switched_on, usable_for
from ._row_map import RowMap, RowWeights, row_weights_op, run_forward
from ._triton import run as on_gpu
from ._triton.choice import takes

# Below this many logits the reference answers sooner than a kernel that may have to be compiled first
# (`make bench ARGS="--part latency,crossover"` prints both).
FUSED_FROM = 1 << 16
_fused_from: ContextVar[int | None] = ContextVar("_fused_from", default=None)


class kernels_from:
    """Use the kernels from this many logits on, in this thread and block: for callers with many small calls.

    A class, because every step of a generation enters it, and a generator takes three times as long.

    Args:
        logits: the least number of them per call.

    Examples:
        >>> with abbe.normalizers.kernels_from(64):
        ...     weights = abbe.normalizer("sparsemax")(torch.tensor([2.0, 0.0]))
        >>> weights.tolist()
        [1.0, 0.0]
    """

    def __init__(self, logits: int) -> None:
        self.logits = logits
        self._token: Token[int | None] | None = None

    def __enter__(self) -> None:
        if not torch.compiler.is_compiling():  # cannot trace a ContextVar, and `fused` does not ask it while compiling
            self._token = _fused_from.set(self.logits)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _fused_from.reset(self._token)


def inside_transform() -> bool:
    """Whether torch.func (vmap, grad, jacrev, jvp, ...) or forward-mode differentiation is active.

    Returns:
        True inside a transform, where kernels cannot be used.

    Examples:
        >>> abbe.normalizers.inside_transform()
        False
    """
    # torch has no public function for either; the level of forward mode is -1 outside of it.
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def row_weights(which: RowMap, logits: Tensor, params: Tensor) -> Tensor:
    """Weights of every row of `logits`; `params` broadcasts over the rows."""
    if which.module is None or not (fused(logits) or fused_on_gpu(which.name, logits)):
        return which.reference(logits, params)
    if torch.compiler.is_compiling():
        compiled: Tensor = row_weights_op(logits, params, which.name)
        return compiled
    if not (torch.is_grad_enabled() and (logits.requires_grad or params.requires_grad)):
        return run_forward(logits, params, which.name)
    eager: Tensor = RowWeights.apply(logits, params, which.name)  # type: ignore[no-untyped-call]
    return eager


def fused(logits: Tensor) -> bool:
    """Whether the CPU kernels take these logits: float32, enough of them, outside of torch.func.

    Args:
        logits: (..., keys).

    Returns:
        False if the plain torch reference is used.

    Examples:
        >>> abbe.normalizers.fused(torch.zeros(4, 8))
        False
    """
    if logits.dtype != torch.float32 or inside_transform() or not usable_for(logits):
        return False
    return _large_enough(logits)


def fused_on_gpu(name: str, logits: Tensor) -> bool:
    """Whether the Triton kernels of this map take these logits."""
    if not takes(name, logits) or inside_transform() or not switched_on() or on_gpu.given_up():
        return False
    return _large_enough(logits)


def _large_enough(logits: Tensor) -> bool:
    # torch.compile has time, and one call is a smaller graph than the reference.
    return torch.compiler.is_compiling() or logits.numel() >= min(FUSED_FROM, _fused_from.get() or FUSED_FROM)
