"""Fenchel-Young losses of the entmax package: entropies, one loss for all families, functions and modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._errors import AbbeError
from .._kernels.calls import KernelsBrokenError, load, over_rows
from ..normalizers import entmax_weights, fused, inside_transform, normmax_weights
from .activations import OfFunction, one_per_row, working

__all__ = [
    "Entmax15Loss",
    "EntmaxBisectLoss",
    "NormmaxBisectLoss",
    "SparsemaxBisectLoss",
    "SparsemaxLoss",
    "entmax15_loss",
    "entmax_bisect_loss",
    "normmax_bisect_loss",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
]


def expm1_ratio(t: Tensor) -> Tensor:
    """(e^t - 1)/t, smooth through 0 in all derivatives."""
    near = t.abs() < 0.5  # 15 terms of the series reach float64
    small, far = torch.where(near, t, 0.0), torch.where(near, 1.0, t)
    series = torch.ones_like(t)
    for k in range(16, 1, -1):
        series = 1 + series * small / k
    return torch.where(near, series, torch.expm1(far) / far)


def tsallis(weights: Tensor, alpha: float | Tensor) -> Tensor:
    """sum p (1 - p^beta)/(beta (beta + 1)), beta = alpha - 1: Shannon's entropy at 1, half of Gini's at 2.

    Term by term nothing cancels: the sum keeps its digits near a single key of weight 1.
    """
    positive = torch.where(weights > 0, weights, 1.0)  # a weight of 0 adds no entropy, like a weight of 1
    if isinstance(alpha, Tensor):
        logs = positive.log()
        share = -logs * expm1_ratio((alpha - 1) * logs) / alpha
    elif alpha == 2:
        share = (1 - weights) / 2
    elif alpha == 1.5:
        share = (1 - positive.sqrt()) * (4 / 3)
    elif alpha == 1:
        share = -positive.log()
    else:
        share = -torch.expm1((alpha - 1) * positive.log()) / (alpha * (alpha - 1))
    return (weights * share).sum(-1)


def tsallis_kernel(alpha: float) -> str | None:
    """The kernel of the matching loss; near alpha = 1 a power in float32 would lose digits."""
    if abs(alpha - 1) < 0.05 and alpha != 1:
        return None
    return {1.0: "shannon", 1.5: "root", 2.0: "gini"}.get(alpha, "power")


def norm(weights: Tensor, alpha: float | Tensor) -> Tensor:
    """1 - ||p||_alpha; 0 for alpha <= 1, where the weights of equal keys represent any one of them."""
    peak = weights.detach().amax(-1, keepdim=True)
    peak = torch.where(peak > 0, peak, 1.0)  # the unit, since powers of small weights could underflow
    power = torch.as_tensor(alpha, dtype=weights.dtype, device=weights.device)
    soft = power > 1
    power = torch.where(soft, power, 2.0)
    positive = torch.where(weights > 0, weights, peak)
    raised = torch.where(weights > 0, (positive / peak) ** power, 0 * weights)
    size = peak * raised.sum(-1, keepdim=True).clamp(min=1) ** (1 / power)
    return torch.where(soft, 1 - size, 0 * size).squeeze(-1)


@dataclass(frozen=True)
class Family:
    """Weights of rows at an alpha, their entropy, and the kernel of the loss, if any."""

    weights: Callable[[Tensor, float | Tensor], Tensor]
    entropy: Callable[[Tensor, float | Tensor], Tensor]
    kernel: Callable[[float], str | None] = lambda alpha: None


ENTMAX, NORMMAX = Family(entmax_weights, tsallis, tsallis_kernel), Family(normmax_weights, norm)


def fenchel_young(owner: str, family: Family, X: Tensor, target: Tensor, alpha: float | Tensor) -> Tensor:
    """The loss of every row of X (..., classes), never negative; `target` holds the index of its class."""
    x = working(owner, X)
    _check(owner, X, target)
    target = target.long()
    if isinstance(alpha, Tensor) and alpha.ndim > 0:
        alpha = one_per_row(owner, alpha, X, -1)
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
    """Slope of the entropy at fixed weights: they are a maximum, so their own change has no first-order effect."""
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
        kernel = load("abbe.entmax._kernels", name)
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


_REDUCTIONS = ("elementwise_mean", "mean", "sum", "none")


def sparsemax_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """Loss of every row of X whose gradient is sparsemax minus the target.

    0 once the target leads by a margin of 1; high means that another class leads.

    Args:
        X: scores, (..., classes).
        target: class numbers, (...).
        k: accepted and without effect.

    Returns:
        Losses, (...), >= 0.

    Examples:
        >>> X, target = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.5, 0.0]]), torch.tensor([0, 2])
        >>> [round(loss, 3) for loss in abbe.entmax.sparsemax_loss(X, target).tolist()]
        [0.0, 0.583]
    """
    return fenchel_young("sparsemax_loss", ENTMAX, X, target, 2.0)


def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int | None = 50) -> Tensor:
    """The same as `sparsemax_loss`: 0 once the target leads by a margin of 1, high where another class leads.

    Args:
        X, target: as for `sparsemax_loss`.
        n_iter: accepted and without effect.

    Returns:
        Losses, (...), >= 0.

    Examples:
        >>> abbe.entmax.sparsemax_bisect_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).tolist()
        [0.0]
    """
    return fenchel_young("sparsemax_bisect_loss", ENTMAX, X, target, 2.0)


def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """Loss of every row of X whose gradient is 1.5-entmax minus the target.

    0 once the target leads by a margin of 2; high means that another class leads.

    Args:
        X, target, k: as for `sparsemax_loss`.

    Returns:
        Losses, (...), >= 0.

    Examples:
        >>> abbe.entmax.entmax15_loss(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 0])).tolist()
        [0.0, 3.0]
    """
    return fenchel_young("entmax15_loss", ENTMAX, X, target, 1.5)


def entmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 1.5, n_iter: int | None = 50) -> Tensor:
    """Loss of every row of X whose gradient is alpha-entmax minus the target; at alpha = 1 it is cross-entropy.

    0 once the target leads by a margin of 1/(alpha - 1); high means that another class leads.

    Args:
        X, target: as for `sparsemax_loss`.
        alpha: > 0, a number or one per row, (..., 1); it has a gradient.
        n_iter: accepted and without effect.

    Returns:
        Losses, (...), >= 0.

    Examples:
        >>> X, target = torch.tensor([[0.0, 0.5, 0.0]]), torch.tensor([2])
        >>> [round(float(abbe.entmax.entmax_bisect_loss(X, target, alpha)), 3) for alpha in (1.0, 1.3, 2.0)]
        [1.294, 0.927, 0.583]
    """
    return fenchel_young("entmax_bisect_loss", ENTMAX, X, target, alpha)


def normmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 2, n_iter: int | None = 50) -> Tensor:
    """Loss of every row of X whose gradient is normmax minus the target.

    0 once the target leads by a margin of 1; high means that another class leads.

    Args:
        X, target, alpha, n_iter: as for `entmax_bisect_loss`.

    Returns:
        Losses, (...), >= 0.

    Examples:
        >>> abbe.entmax.normmax_bisect_loss(torch.tensor([[3.0, 0.0]]), torch.tensor([0])).tolist()
        [0.0]
    """
    return fenchel_young("normmax_bisect_loss", NORMMAX, X, target, alpha)


class Loss(OfFunction):
    """A loss per row, reduced: rows whose target is `ignore_index` count as 0, and not in the mean.

    Args:
        ignore_index: class number of the rows that do not count.
        reduction: "mean" (or "elementwise_mean"), "sum" or "none".
    """

    more: ClassVar[dict[str, Any]] = {"ignore_index": -100, "reduction": "elementwise_mean"}
    ignore_index: int
    reduction: str

    def _check(self) -> None:
        if self.reduction not in _REDUCTIONS:
            raise AbbeError(f"{type(self).__name__}: reduction must be one of {_REDUCTIONS}, got {self.reduction!r}")
        self.ignore_index = int(self.ignore_index)

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        """Losses of every row, before they are reduced.

        Args:
            X: scores, (..., classes).
            target: class numbers, (...).
        """
        losses: Tensor = self._result(X, target)
        return losses

    def forward(self, X: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        """The reduced loss.

        Args:
            X: scores, (..., classes).
            target: class numbers, (...).
        """
        counted = target != self.ignore_index
        if is_traced() or not bool(counted.all()):
            # Filled, not only left out of the sum: a NaN in an ignored row must not reach the gradient.
            X, target = X.masked_fill(~counted.unsqueeze(-1), 0.0), target.masked_fill(~counted, 0)
        rows = torch.where(counted, self.loss(X, target), 0.0)
        if self.reduction == "none":
            return rows
        return rows.sum() if self.reduction == "sum" else rows.sum() / counted.sum().clamp(min=1)


class SparsemaxLoss(Loss, of=sparsemax_loss):
    """`sparsemax_loss` as a module.

    Args:
        k: accepted and without effect.
        ignore_index: class number of the rows that do not count.
        reduction: "mean" (or "elementwise_mean"), "sum" or "none".

    Examples:
        >>> float(abbe.entmax.SparsemaxLoss()(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0])))
        1.0
    """


class SparsemaxBisectLoss(Loss, of=sparsemax_bisect_loss):
    """`sparsemax_bisect_loss` as a module.

    Args:
        n_iter: accepted and without effect.
        ignore_index, reduction: as for `SparsemaxLoss`.

    Examples:
        >>> float(abbe.entmax.SparsemaxBisectLoss(reduction="sum")(torch.tensor([[0.0, 2.0]]), torch.tensor([0])))
        2.0
    """


class Entmax15Loss(Loss, of=entmax15_loss, k=100):
    """`entmax15_loss` as a module.

    Args:
        k, ignore_index, reduction: as for `SparsemaxLoss`.

    Examples:
        >>> X, target = torch.tensor([[0.0, 3.0], [0.0, 3.0]]), torch.tensor([0, -100])
        >>> [round(loss, 3) for loss in abbe.entmax.Entmax15Loss(reduction="none")(X, target).tolist()]
        [3.0, 0.0]
    """


class EntmaxBisectLoss(Loss, of=entmax_bisect_loss):
    """`entmax_bisect_loss` as a module; an `nn.Parameter` as alpha gets gradients.

    Args:
        alpha: > 0, a number, a tensor or a parameter.
        n_iter: accepted and without effect.
        ignore_index, reduction: as for `SparsemaxLoss`.

    Examples:
        >>> alpha = torch.nn.Parameter(torch.tensor(1.5))
        >>> loss = abbe.entmax.EntmaxBisectLoss(alpha)(torch.tensor([[0.0, 0.5]]), torch.tensor([0]))
        >>> loss.backward()
        >>> alpha.grad is not None
        True
    """


class NormmaxBisectLoss(Loss, of=normmax_bisect_loss):
    """`normmax_bisect_loss` as a module; an `nn.Parameter` as alpha gets gradients.

    Args:
        alpha, n_iter, ignore_index, reduction: as for `EntmaxBisectLoss`.

    Examples:
        >>> float(abbe.entmax.NormmaxBisectLoss()(torch.tensor([[3.0, 0.0]]), torch.tensor([0])))
        0.0
    """
