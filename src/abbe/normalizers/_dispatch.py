"""One row-wise map, three ways: the torch reference, and a fused forward and backward for large CPU and GPU rows.

The reference is the specification: plain differentiable torch operations on any device and dtype. The fused
kernels (`_kernels` on a CPU, `_triton` on a GPU) hold float32 rows in cache and are chosen by `row_weights` where they
pay. Derivatives beyond the first, and everything inside torch.func transforms, go through the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._kernels.switch import KernelsBrokenError, load, switched_on, usable_for
from .._kernels.threads import over_rows
from ._triton import run as on_gpu
from ._triton.choice import takes

# Below this many logits the reference answers sooner than a kernel that may have to be compiled first
# (`make bench ARGS="--part latency,crossover"` prints both).
FUSED_FROM = 1 << 16
_asked_from: ContextVar[int | None] = ContextVar("_asked_from", default=None)

Reference = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class RowMap:
    """weights = reference(logits (..., L), params (..., P)); `module`.`forward`/`backward` are its kernels, if any."""

    name: str
    reference: Reference
    module: str | None = None
    forward: str = "forward"
    backward: str = "backward"

    def kernel(self, which: str) -> Callable[..., None]:
        if self.module is None:
            raise TypeError(f"row map {self.name!r} has no kernels")
        return kernel_named(self.module, which)


def kernel_named(module: str, name: str) -> Callable[..., None]:
    kernel: Callable[..., None] = load(f"{__package__}._kernels.{module}", name)
    return kernel


_MAPS: dict[str, RowMap] = {}


def row_map(
    name: str, reference: Reference, module: str | None = None, forward: str = "forward", backward: str = "backward"
) -> RowMap:
    """Register a row-wise map under a name that the custom operators can carry; without kernels it is the reference."""
    made = RowMap(name, reference, module, forward, backward)
    if name in _MAPS:
        raise RuntimeError(f"row map {name!r} is registered twice")
    _MAPS[name] = made
    return made


class kernels_from:
    """Use the kernels from so many logits on, in this thread and block: for callers with many small calls.

    A class, because every step of a generation enters it, and a generator takes three times as long.

    Args:
        logits: the least number of them in a call.

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
            self._token = _asked_from.set(self.logits)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _asked_from.reset(self._token)


def inside_transform() -> bool:
    """Whether torch.func (vmap, grad, jacrev, jvp, ...) or forward-mode differentiation is at work.

    Returns:
        True inside of a transform, where kernels cannot serve.

    Examples:
        >>> abbe.normalizers.inside_transform()
        False
    """
    # torch has no public question for either; the level of forward mode is -1 outside of it.
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def row_weights(which: RowMap, logits: Tensor, params: Tensor) -> Tensor:
    """Weights of every row of `logits`; `params` broadcasts over the rows."""
    if which.module is None or not (fused(logits) or fused_on_gpu(which.name, logits)):
        return which.reference(logits, params)
    if torch.compiler.is_compiling():
        compiled: Tensor = _row_weights_op(logits, params, which.name)
        return compiled
    if not (torch.is_grad_enabled() and (logits.requires_grad or params.requires_grad)):
        return _run_forward(logits, params, which.name)
    eager: Tensor = _RowWeights.apply(logits, params, which.name)  # type: ignore[no-untyped-call]
    return eager


def fused(logits: Tensor) -> bool:
    """Whether the CPU kernels take these logits: float32, enough of them, outside of torch.func.

    Args:
        logits: (..., keys).

    Returns:
        False where the plain torch reference answers.

    Examples:
        >>> abbe.normalizers.fused(torch.zeros(4, 8))
        False
    """
    if logits.dtype != torch.float32 or inside_transform() or not usable_for(logits):
        return False
    return _large_enough(logits)


def fused_on_gpu(name: str, logits: Tensor) -> bool:
    """Whether the Triton kernels of that map take these logits."""
    if not takes(name, logits) or inside_transform() or not switched_on() or on_gpu.given_up():
        return False
    return _large_enough(logits)


def _large_enough(logits: Tensor) -> bool:
    # Who compiles has time, and one call is a smaller graph than the reference.
    return torch.compiler.is_compiling() or logits.numel() >= min(FUSED_FROM, _asked_from.get() or FUSED_FROM)


def _run_forward(logits: Tensor, params: Tensor, name: str) -> Tensor:
    which = _MAPS[name]
    rows = as_rows(logits)
    weights = torch.empty_like(rows)
    try:
        if takes(name, logits):
            on_gpu.forward_rows(name, rows, params_of_rows(params, logits), weights)
        else:
            over_rows(which.kernel(which.forward), len(rows), rows, params_of_rows(params, logits), weights)
    except KernelsBrokenError:
        logits, params = (_computed(x.detach()) for x in (logits, params))
        return which.reference(logits, params).to(weights.dtype).contiguous()
    return weights.view(logits.shape)


def _run_backward(
    grad: Tensor, logits: Tensor, weights: Tensor, params: Tensor, name: str, with_params: bool
) -> tuple[Tensor, Tensor]:
    which = _MAPS[name]
    rows = as_rows(logits)
    grad_logits = torch.empty_like(rows)
    # No rows for the parameters tell the kernel that nobody wants their gradient.
    grad_params = rows.new_zeros((len(rows) if with_params else 0, params.shape[-1]), dtype=torch.float32)
    arrays = as_rows(grad), rows, as_rows(weights), params_of_rows(params, logits), grad_logits, grad_params
    try:
        if takes(name, logits):
            on_gpu.backward_rows(name, *arrays)
        else:
            over_rows(which.kernel(which.backward), len(rows), *arrays)
    except KernelsBrokenError:
        return reference_gradients(which, grad, logits, params)
    if with_params:
        summed = grad_params.view(*logits.shape[:-1], params.shape[-1]).sum_to_size(params.shape)
        return grad_logits.view(logits.shape), summed.to(params.dtype).contiguous()
    # An operator of torch returns tensors, never None.
    return grad_logits.view(logits.shape), torch.zeros_like(params)


def reference_gradients(which: RowMap, grad: Tensor, logits: Tensor, params: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        inputs = logits.detach().requires_grad_(), params.detach().requires_grad_()
        weights = which.reference(*map(_computed, inputs)).to(grad.dtype)
    # Not every map has parameters that its weights depend on: their gradient is 0, not missing.
    grads = torch.autograd.grad(weights, inputs, grad.detach(), materialize_grads=True)
    return grads[0].contiguous(), grads[1].contiguous()


def _computed(x: Tensor) -> Tensor:
    """In the precision of the kernels, which take half precision as it is stored."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def as_rows(x: Tensor) -> Tensor:
    return x.contiguous().view(-1, x.shape[-1])


def params_of_rows(params: Tensor, logits: Tensor) -> Tensor:
    count = params.shape[-1]
    # One row of parameters for all is not repeated: kernels read row 0 then.
    if params.numel() == count:
        return params.reshape(1, count).contiguous()
    return params.expand(*logits.shape[:-1], count).reshape(-1, count).contiguous()


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    logits, params, ctx.name = inputs
    ctx.save_for_backward(logits, params, output)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    grad, logits, _weights, params, ctx.name, _with_params = inputs
    ctx.save_for_backward(grad, logits, params)


def _second_order(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradient of the gradient, by differentiating the reference twice.

    The weights get none: they are a function of the logits, which carry their share.
    """
    # Only who asks for a third derivative pays for the graph of the second.
    deeper = torch.is_grad_enabled()
    with torch.enable_grad():
        grad, logits, params = (
            x if deeper and x.requires_grad else x.detach().requires_grad_() for x in ctx.saved_tensors
        )
        weights = _MAPS[ctx.name].reference(_computed(logits), _computed(params)).to(grad.dtype)
        first = torch.autograd.grad(weights, (logits, params), grad, create_graph=True, materialize_grads=True)
        asked = [(f, t) for f, t in zip(first, tangents, strict=True) if t is not None and f.requires_grad]
        of_grad, of_logits, of_params = torch.autograd.grad(
            [f for f, _ in asked],
            (grad, logits, params),
            [t for _, t in asked],
            create_graph=deeper,
            materialize_grads=True,
        )
    return of_grad, of_logits, None, of_params, None, None


class _RowWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, params: Tensor, name: str) -> Tensor:
        weights = _run_forward(logits, params, name)
        _save_forward(ctx, (logits, params, name), weights)
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, params, weights = ctx.saved_tensors
        with_params = ctx.needs_input_grad[1]
        grads = RowGradients.apply(grad, logits, weights, params, ctx.name, with_params)  # type: ignore[no-untyped-call]
        return grads[0], grads[1] if with_params else None, None


class RowGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, logits: Tensor, weights: Tensor, params: Tensor, name: str, with_params: bool
    ) -> tuple[Tensor, Tensor]:
        grads = _run_backward(grad, logits, weights, params, name, with_params)
        _save_backward(ctx, (grad, logits, weights, params, name, with_params), grads)
        return grads

    backward = staticmethod(_second_order)


# The same as operators: torch.compile keeps them as calls in its graph.
_row_weights_op = torch.library.custom_op("abbe::row_weights", _run_forward, mutates_args=())
_row_gradients_op = torch.library.custom_op("abbe::row_gradients", _run_backward, mutates_args=())


@_row_weights_op.register_fake
def _(logits: Tensor, params: Tensor, name: str) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


@_row_gradients_op.register_fake
def _(
    grad: Tensor, logits: Tensor, weights: Tensor, params: Tensor, name: str, with_params: bool
) -> tuple[Tensor, Tensor]:
    grad_logits = torch.empty_like(logits, memory_format=torch.contiguous_format)
    return grad_logits, torch.empty_like(params, memory_format=torch.contiguous_format)


def _op_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    logits, params, weights = ctx.saved_tensors
    with_params = ctx.needs_input_grad[1]
    grad_logits, grad_params = _row_gradients_op(grad, logits, weights, params, ctx.name, with_params)
    return grad_logits, grad_params if with_params else None, None


_row_weights_op.register_autograd(_op_backward, setup_context=_save_forward)
_row_gradients_op.register_autograd(_second_order, setup_context=_save_backward)
