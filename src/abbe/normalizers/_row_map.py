"""Row-wise maps: the torch reference, and a fused forward and backward for large CPU and GPU rows.

The reference is the specification: plain differentiable torch operations on any device and dtype. The fused kernels
(`_kernels` on a CPU, `_triton` on a GPU) hold float32 rows in cache; `_dispatch` chooses between them. Derivatives
beyond the first go through the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._kernels.switch import KernelsBrokenError, load
from .._kernels.threads import over_rows
from ._triton import run as on_gpu
from ._triton.choice import takes

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


MAPS: dict[str, RowMap] = {}


def row_map(name: str, reference: Reference, *kernels: str) -> RowMap:
    """Register a map by a name, which custom operators can carry; `kernels` are its module, forward and backward."""
    if name in MAPS:
        raise RuntimeError(f"row map {name!r} is registered twice")
    MAPS[name] = RowMap(name, reference, *kernels)
    return MAPS[name]


def run_forward(logits: Tensor, params: Tensor, name: str) -> Tensor:
    which = MAPS[name]
    rows = as_rows(logits)
    weights = torch.empty_like(rows)
    try:
        if takes(name, logits):
            on_gpu.forward_rows(name, rows, params_of_rows(params, logits), weights)
        else:
            over_rows(which.kernel(which.forward), len(rows), rows, params_of_rows(params, logits), weights)
    except KernelsBrokenError:
        logits, params = (as_float(x.detach()) for x in (logits, params))
        return which.reference(logits, params).to(weights.dtype).contiguous()
    return weights.view(logits.shape)


def run_backward(
    grad: Tensor, logits: Tensor, weights: Tensor, params: Tensor, name: str, with_params: bool
) -> tuple[Tensor, Tensor]:
    which = MAPS[name]
    rows = as_rows(logits)
    grad_logits = torch.empty_like(rows)
    # With no rows in it, the kernel skips the gradient to the parameters.
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
    # A torch operator must return tensors, never None.
    return grad_logits.view(logits.shape), torch.zeros_like(params)


def reference_gradients(which: RowMap, grad: Tensor, logits: Tensor, params: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        inputs = logits.detach().requires_grad_(), params.detach().requires_grad_()
        weights = which.reference(*map(as_float, inputs)).to(grad.dtype)
    # The weights of some maps do not depend on the parameters: their gradient is 0, not None.
    grads = torch.autograd.grad(weights, inputs, grad.detach(), materialize_grads=True)
    return grads[0].contiguous(), grads[1].contiguous()


def as_float(x: Tensor) -> Tensor:
    """Half precision becomes float32, in which the kernels compute."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def as_rows(x: Tensor) -> Tensor:
    return x.contiguous().view(-1, x.shape[-1])


def params_of_rows(params: Tensor, logits: Tensor) -> Tensor:
    count = params.shape[-1]
    # Parameters shared by all rows are not repeated: kernels then read row 0.
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

    The weights get none: they are a function of the logits, whose gradient includes theirs.
    """
    # The graph of the second derivative is only built if a third is needed.
    deeper = torch.is_grad_enabled()
    with torch.enable_grad():
        grad, logits, params = (
            x if deeper and x.requires_grad else x.detach().requires_grad_() for x in ctx.saved_tensors
        )
        weights = MAPS[ctx.name].reference(as_float(logits), as_float(params)).to(grad.dtype)
        first = torch.autograd.grad(weights, (logits, params), grad, create_graph=True, materialize_grads=True)
        pairs = [(f, t) for f, t in zip(first, tangents, strict=True) if t is not None and f.requires_grad]
        of_grad, of_logits, of_params = torch.autograd.grad(
            [f for f, _ in pairs], (grad, logits, params), [t for _, t in pairs],
            create_graph=deeper, materialize_grads=True,
        )  # fmt: skip
    return of_grad, of_logits, None, of_params, None, None


class RowWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, params: Tensor, name: str) -> Tensor:
        weights = run_forward(logits, params, name)
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
        grads = run_backward(grad, logits, weights, params, name, with_params)
        _save_backward(ctx, (grad, logits, weights, params, name, with_params), grads)
        return grads

    backward = staticmethod(_second_order)


# The same as custom operators, which torch.compile keeps as calls in its graph.
row_weights_op = torch.library.custom_op("abbe::row_weights", run_forward, mutates_args=())
_row_gradients_op = torch.library.custom_op("abbe::row_gradients", run_backward, mutates_args=())


@row_weights_op.register_fake
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


row_weights_op.register_autograd(_op_backward, setup_context=_save_forward)
_row_gradients_op.register_autograd(_second_order, setup_context=_save_backward)
