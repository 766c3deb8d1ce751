"""Row-wise maps and blends of two: the torch reference, and fused passes for large float32 rows on a CPU.

The reference is the specification: plain differentiable torch operations on any device and dtype. The fused kernels
(`_kernels`) hold float32 rows in cache. Derivatives beyond the first go through the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._kernels.calls import KernelsBrokenError, load, loading, over_rows, usable_for
from ._rows import visible_keys

__all__ = ["fused", "inside_transform", "kernels_from"]

Reference = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class RowMap:
    """weights = reference(logits (..., L), params (..., P)); its kernels, if any, are forward and backward, each named
    "module.function"."""

    name: str
    reference: Reference
    forward: str = ""
    backward: str = ""

    def kernel(self, which: Literal["forward", "backward"]) -> Callable[..., None]:
        return kernel_named(*getattr(self, which).split("."))


def kernel_named(module: str, name: str) -> Callable[..., None]:
    kernel: Callable[..., None] = load(f"{__package__}._kernels.{module}", name)
    return kernel


MAPS: dict[str, RowMap] = {}


def row_map(name: str, reference: Reference, kernels: str = "", backward: str = "") -> RowMap:
    """Register a map by a name, which custom operators can carry.

    `kernels` "module.stem" stands for module.stem_forward and module.stem_backward, unless `backward` is given.
    """
    if name in MAPS:
        raise RuntimeError(f"row map {name!r} is registered twice")
    both = (f"{kernels}_forward", backward or f"{kernels}_backward") if kernels else ()
    MAPS[name] = RowMap(name, reference, *both)
    return MAPS[name]


def run_forward(logits: Tensor, params: Tensor, name: str) -> Tensor:
    which = MAPS[name]
    rows = as_rows(logits)
    weights = torch.empty_like(rows)
    try:
        over_rows(which.kernel("forward"), len(rows), rows, params_of_rows(params, logits), weights)
    except KernelsBrokenError:
        return which.reference(logits.detach(), params.detach()).contiguous()
    return weights.view(logits.shape)


def run_backward(
    grad: Tensor, logits: Tensor, weights: Tensor, params: Tensor, name: str, with_params: bool
) -> tuple[Tensor, Tensor]:
    which = MAPS[name]
    rows = as_rows(logits)
    grad_logits = torch.empty_like(rows)
    # With no rows in it, the kernel skips the gradient to the parameters.
    grad_params = rows.new_zeros(len(rows) if with_params else 0, params.shape[-1])
    arrays = as_rows(grad), rows, as_rows(weights), params_of_rows(params, logits), grad_logits, grad_params
    try:
        over_rows(which.kernel("backward"), len(rows), *arrays)
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
        weights = which.reference(*inputs)
    # The weights of some maps do not depend on the parameters: their gradient is 0, not None.
    grads = torch.autograd.grad(weights, inputs, grad.detach(), materialize_grads=True)
    return grads[0].contiguous(), grads[1].contiguous()


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
        weights = MAPS[ctx.name].reference(logits, params)
        first = torch.autograd.grad(weights, (logits, params), grad, create_graph=True, materialize_grads=True)
        pairs = [(f, t) for f, t in zip(first, tangents, strict=True) if t is not None and f.requires_grad]
        of_grad, of_logits, of_params = torch.autograd.grad(
            [f for f, _ in pairs], (grad, logits, params), [t for _, t in pairs],
            create_graph=deeper, materialize_grads=True,
        )  # fmt: skip
    return of_grad, of_logits, None, of_params, None, None


class RowGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, logits: Tensor, weights: Tensor, params: Tensor, name: str, with_params: bool
    ) -> tuple[Tensor, Tensor]:
        grads = run_backward(grad, logits, weights, params, name, with_params)
        _save_backward(ctx, (grad, logits, weights, params, name, with_params), grads)
        return grads

    backward = staticmethod(_second_order)


def _first_order(gradients: Callable[..., Any]) -> Callable[..., tuple[Tensor | None, ...]]:
    """The backward pass that calls `gradients`, either function or operator."""

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, params, weights = ctx.saved_tensors
        with_params = ctx.needs_input_grad[1]
        grad_logits, grad_params = gradients(grad, logits, weights, params, ctx.name, with_params)
        return grad_logits, grad_params if with_params else None, None

    return backward


class RowWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, params: Tensor, name: str) -> Tensor:
        weights = run_forward(logits, params, name)
        _save_forward(ctx, (logits, params, name), weights)
        return weights

    backward = staticmethod(_first_order(RowGradients.apply))


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


row_weights_op.register_autograd(_first_order(_row_gradients_op), setup_context=_save_forward)
_row_gradients_op.register_autograd(_second_order, setup_context=_save_backward)


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
    if not which.forward or not fused(logits):
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
    # torch.compile has time, and one call is a smaller graph than the reference.
    return torch.compiler.is_compiling() or logits.numel() >= min(FUSED_FROM, _fused_from.get() or FUSED_FROM)


def blended_weights(
    first: tuple[RowMap, Tensor], second: tuple[RowMap, Tensor], logits: Tensor, share: float
) -> Tensor:
    """share * first + (1 - share) * second, each a map with its parameters."""
    (a, params_a), (b, params_b) = first, second
    if a.forward and b.forward and fused(logits) and not torch.compiler.is_compiling():
        blend: Tensor = _Blend.apply(logits, params_a, params_b, a, b, share)  # type: ignore[no-untyped-call]
        return blend
    return torch.lerp(row_weights(b, logits, params_b), row_weights(a, logits, params_a), share)


class _Blend(torch.autograd.Function):
    """Two maps of the same logits, mixed: their gradients are linear, so they are mixed too, in place."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, params_a: Tensor, params_b: Tensor, a: RowMap, b: RowMap, share: float
    ) -> Tensor:
        keep = any(ctx.needs_input_grad)
        rows, mixed = as_rows(logits), torch.empty_like(as_rows(logits))
        # If no gradient is needed, the kernel gets empty arrays and does not keep the weights of both maps.
        weights_a, weights_b = (torch.empty_like(rows if keep else rows[:0]) for _ in "ab")
        params = [params_of_rows(params, logits) for params in (params_a, params_b)]
        try:
            kernel = _blend_kernel("forward", a, b)
            over_rows(kernel, len(rows), rows, *params, rows.new_tensor([share]), weights_a, weights_b, mixed)
        except KernelsBrokenError:
            weights_a = as_rows(run_forward(logits, params_a, a.name))
            weights_b = as_rows(run_forward(logits, params_b, b.name))
            mixed = torch.lerp(weights_b, weights_a, share)
        ctx.maps, ctx.share = (a, b), share
        if keep:
            ctx.save_for_backward(logits, params_a, params_b, weights_a, weights_b)
        return mixed.view(logits.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, params_a, params_b, weights_a, weights_b = ctx.saved_tensors
        (a, b), share, (_, wanted_a, wanted_b, *_) = ctx.maps, ctx.share, ctx.needs_input_grad
        # The fused gradient is only to the logits, and cannot be differentiated again.
        if not torch.is_grad_enabled() and not (wanted_a or wanted_b):
            of_logits = _blended_gradient(grad, logits, params_a, params_b, weights_a, weights_b, a, b, share)
            return of_logits, None, None, None, None, None
        weights_a, weights_b = weights_a.view(logits.shape), weights_b.view(logits.shape)
        of_a = RowGradients.apply(grad, logits, weights_a, params_a, a.name, wanted_a)  # type: ignore[no-untyped-call]
        of_b = RowGradients.apply(grad, logits, weights_b, params_b, b.name, wanted_b)  # type: ignore[no-untyped-call]
        grad_a, grad_b = (of_a[1] * share if wanted_a else None), (of_b[1] * (1 - share) if wanted_b else None)
        return torch.lerp(of_b[0], of_a[0], share), grad_a, grad_b, None, None, None


def _blended_gradient(
    grad: Tensor, logits: Tensor, params_a: Tensor, params_b: Tensor, weights_a: Tensor, weights_b: Tensor,
    a: RowMap, b: RowMap, share: float,
) -> Tensor:  # fmt: skip
    """Gradient to the logits alone."""
    rows = as_rows(logits)
    params = [params_of_rows(params, logits) for params in (params_a, params_b)]
    grad_logits, of_params = torch.empty_like(rows), rows.new_empty(0, 1)
    try:
        over_rows(
            _blend_kernel("backward", a, b), len(rows), as_rows(grad), rows, weights_a, weights_b, *params,
            rows.new_tensor([share]), grad_logits, of_params,
        )  # fmt: skip
    except KernelsBrokenError:
        of_a, _ = reference_gradients(a, grad, logits, params_a)
        of_b, _ = reference_gradients(b, grad, logits, params_b)
        return torch.lerp(of_b, of_a, share)
    return grad_logits.view(logits.shape)


def _blend_kernel(which: Literal["forward", "backward"], a: RowMap, b: RowMap) -> Callable[..., None]:
    parts = a.kernel(which), b.kernel(which)
    with loading():
        blend: Callable[..., None] = kernel_named("rows", which)(*parts)  # type: ignore[assignment]
    return blend


def row_counts(logits: Tensor) -> Tensor:
    """The number of visible keys of every row, shape (..., 1) in the dtype of the logits, without gradient."""
    if not fused(logits):
        return _reference_counts(logits)
    if torch.compiler.is_compiling():
        compiled: Tensor = _row_counts_op(logits.detach())
        return compiled
    return _run_counts(logits.detach())


def _run_counts(logits: Tensor) -> Tensor:
    rows = as_rows(logits)
    counts = rows.new_empty(len(rows), 1)
    try:
        over_rows(kernel_named("shaped", "count_forward"), len(rows), rows, counts)
    except KernelsBrokenError:
        return _reference_counts(logits)
    return counts.view(*logits.shape[:-1], 1)


def _reference_counts(logits: Tensor) -> Tensor:
    return visible_keys(logits).sum(-1, keepdim=True).to(logits.dtype)


# As a custom operator, which torch.compile keeps as a call in its graph.
_row_counts_op = torch.library.custom_op("abbe::row_counts", _run_counts, mutates_args=())


@_row_counts_op.register_fake
def _(logits: Tensor) -> Tensor:
    return logits.new_empty((*logits.shape[:-1], 1))
