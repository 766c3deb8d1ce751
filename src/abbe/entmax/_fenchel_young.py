"""Fenchel-Young losses, arXiv 1901.02324: max over p of <x, p> - Omega(p), minus the same at the target's class.

With H = -Omega and p the weights of x, the loss is sum p (x - x_y) + H(p). Its gradient is p - e_y and its second
derivative the Jacobian of the weights; the sum itself is never differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._errors import AbbeError
from .._kernels.switch import KernelsBrokenError, load
from .._kernels.threads import over_rows
from ..normalizers import fused, inside_transform
from ._along import one_per_row, working


@dataclass(frozen=True)
class Family:
    """Weights of rows at an alpha, their entropy, and the kernel of the loss, if any."""

    name: str
    weights: Callable[[Tensor, float | Tensor], Tensor]
    entropy: Callable[[Tensor, float | Tensor], Tensor]
    kernel: Callable[[float], str | None] = lambda alpha: None


def fenchel_young(family: Family, X: Tensor, target: Tensor, alpha: float | Tensor) -> Tensor:
    """The loss of every row of X (..., classes), never negative; `target` holds the index of its class."""
    x = working(family.name, X)
    _check(family.name, X, target)
    target = target.long()
    if isinstance(alpha, Tensor) and alpha.ndim > 0:
        alpha = one_per_row(family.name, alpha, X, -1)
    if isinstance(alpha, Tensor):
        alpha = alpha.to(x.dtype)
        if not alpha.requires_grad and alpha.numel() == 1 and not is_traced():
            alpha = float(alpha)
    if is_traced():  # plain operations, which torch.func and torch.compile differentiate themselves
        return _loss(family, family.weights(x, alpha), x, target, alpha).to(X.dtype)
    loss: Tensor = _FenchelYoung.apply(x, alpha, target, family)  # type: ignore[no-untyped-call]
    return loss.to(X.dtype)


def is_traced() -> bool:
    """Whether torch.compile or torch.func is active, so that values cannot be read."""
    return torch.compiler.is_compiling() or inside_transform()


def _check(owner: str, X: Tensor, target: Tensor) -> None:
    if not isinstance(target, Tensor) or target.is_floating_point() or target.shape != X.shape[:-1]:
        kind = tuple(target.shape) if isinstance(target, Tensor) else type(target).__name__
        raise AbbeError(f"{owner}: target must hold a class for each row, shape {tuple(X.shape[:-1])}, got {kind}")
    if not is_traced() and target.numel() and not 0 <= int(target.min()) <= int(target.max()) < X.shape[-1]:
        raise AbbeError(
            f"{owner}: target must lie in [0, {X.shape[-1]}), got {int(target.min())} to {int(target.max())}"
        )


class _FenchelYoung(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float | Tensor, target: Tensor, family: Family) -> Tensor:
        weights = family.weights(x, alpha)
        ctx.family, ctx.alpha = family, None if isinstance(alpha, Tensor) else alpha
        ctx.save_for_backward(x, weights, target, *((alpha,) if isinstance(alpha, Tensor) else ()))
        return _value(family, weights, x, target, alpha)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weights, target, *rest = ctx.saved_tensors
        alpha = rest[0] if rest else ctx.alpha
        if torch.is_grad_enabled():  # a second derivative is needed: that of the weights
            weights = ctx.family.weights(x, alpha)
        of_target = grad * ~_without_keys(x, target)
        of_x = (grad.unsqueeze(-1) * weights).scatter_add_(-1, target.unsqueeze(-1), -of_target.unsqueeze(-1))
        of_alpha = _slope_in_alpha(ctx.family, weights, alpha, grad) if ctx.needs_input_grad[1] else None
        return of_x, of_alpha, None, None


def _slope_in_alpha(family: Family, weights: Tensor, alpha: Tensor, grad: Tensor) -> Tensor:
    """Of the entropy at fixed weights: they are a maximum, so their own change has no first-order effect."""
    deeper = torch.is_grad_enabled()
    with torch.enable_grad():
        variable = alpha.view_as(alpha) if alpha.requires_grad and deeper else alpha.detach().requires_grad_()
        entropy = family.entropy(weights if deeper else weights.detach(), variable)
        (slope,) = torch.autograd.grad(entropy, variable, grad, create_graph=deeper)
    return slope


def _value(family: Family, weights: Tensor, x: Tensor, target: Tensor, alpha: float | Tensor) -> Tensor:
    """The loss without derivatives, by a kernel if there is one."""
    name = None if isinstance(alpha, Tensor) else family.kernel(alpha)
    if name is None or isinstance(alpha, Tensor) or not fused(x):
        return _loss(family, weights, x, target, alpha)
    rows = tuple(t.contiguous().view(-1, x.shape[-1]) for t in (weights, x))
    places = target.contiguous().view(-1)
    losses = x.new_empty(places.shape)
    try:
        kernel = load("abbe.entmax._kernels.losses", name)
        over_rows(kernel, len(places), *rows, places, x.new_full((1,), alpha), losses)
    except KernelsBrokenError:
        return _loss(family, weights, x, target, alpha)
    return torch.where(_without_keys(x, target), 0.0, losses.view(target.shape))


def _loss(family: Family, weights: Tensor, x: Tensor, target: Tensor, alpha: float | Tensor) -> Tensor:
    """inf where the target is masked; 0 for a row without keys."""
    of_target = x.gather(-1, target.unsqueeze(-1))
    masked = of_target == float("-inf")
    lead = torch.where(weights == 0, 0.0, x - torch.where(masked, 0.0, of_target))  # -inf of weight 0 counts as 0
    loss = (weights * lead).sum(-1) + family.entropy(weights, alpha)
    loss = loss + (loss.clamp(min=0) - loss).detach()  # rounding may leave it slightly negative
    return torch.where(_without_keys(x, target), 0.0, torch.where(masked.squeeze(-1), float("inf"), loss))


def _without_keys(x: Tensor, target: Tensor) -> Tensor:
    masked = x.gather(-1, target.unsqueeze(-1)).squeeze(-1) == float("-inf")
    if not is_traced() and not bool(masked.any()):
        return masked
    return masked & (x.detach().amax(-1) == float("-inf"))
