"""alpha-entmax for every alpha > 0: softmax at 1, heavy tails without zeros below, and the sparsest beyond 2."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..._errors import AbbeError
from .._dispatch import inside_transform, row_weights
from .._entmax import entmax_map
from .._row_map import RowMap, row_map
from .._rows import NEG_INF, below_top, finish
from .._softmax import SOFTMAX
from .root import log_peak, lowest_key, powers_below

_MOST = 50  # Newton steps, a limit for rows in which rounding keeps them alive
_UNROLLED = 18  # in a traced graph, which cannot test for convergence; adversarial rows took 10 at most


def any_alpha_reference(logits: Tensor, params: Tensor) -> Tensor:
    """[beta l - tau]_+^(1/beta), params (beta,), beta = alpha - 1 in (-1, 1]; beta = 0 is softmax."""
    beta = params
    z, visible, top = below_top(logits)
    some = visible.any(-1, keepdim=True)

    def sums(s: Tensor, z: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        w, above = powers_below(z, beta, s, visible)
        return w.sum(-1, keepdim=True), (w / above).sum(-1, keepdim=True)

    count = visible.sum(-1, keepdim=True).clamp(min=1).to(z.dtype)
    s = log_peak(sums, -count.log(), some, z, beta)
    w, _ = powers_below(z, beta, s, visible)
    total = torch.where(some, w.detach().sum(-1, keepdim=True), 1.0)  # no gradient: in exact arithmetic it is 1
    return finish(w / total, logits, params, visible, top)


def beyond_two_reference(logits: Tensor, params: Tensor) -> Tensor:
    """[beta l - tau]_+^(1/beta), params (beta,), beta = alpha - 1 > 1, by the smallest weight of the support.

    What is special: the slope of a weight is infinite where its key enters the support. A threshold tau would need far
    more digits than there are: at alpha = 20 a weight of 0.1 is a difference of 1e-19 in tau. As a function of the
    smallest weight v every other one, (v^beta + beta (l - l_v))^(1/beta), is smooth and convex.

    A bisection over the sorted keys finds the last one of the support, Newton its weight. Two more steps with
    gradients, taken at the root, carry the derivatives up to the third order.
    """
    beta = params
    z, visible, top = below_top(logits)
    some = visible.any(-1, keepdim=True)
    with torch.no_grad():
        last = _last_of_support(torch.where(visible, z.detach(), NEG_INF), beta.detach())
    lead = z - z.gather(-1, last)
    support = visible & (lead >= 0)
    lead = torch.where(support, lead, 0.0)
    with torch.no_grad():
        v = _smallest_weight(lead.detach(), beta.detach(), support)
    for _ in range(2):
        v = _newton(lead, beta, v, support)
    w = _weights_above(lead, beta, v, support)
    total = torch.where(some, w.detach().sum(-1, keepdim=True), 1.0)  # no gradient: in exact arithmetic it is 1
    return finish(w / total, logits, params, visible, top)


def _last_of_support(z: Tensor, beta: Tensor) -> Tensor:
    """Index of the lowest key of the support: if it weighs 0, those above it weigh less than 1."""

    def belongs(level: Tensor) -> Tensor:
        above = (z - level).clamp(min=0)
        return ((beta * above) ** (1 / beta)).sum(-1, keepdim=True) < 1

    return lowest_key(z, belongs)[0]


def _weights_above(lead: Tensor, beta: Tensor, v: Tensor, support: Tensor) -> Tensor:
    """(v^beta + beta lead)^(1/beta), in units of the larger term: powers of small weights underflow."""
    logs = v.log()
    most = 0.9 * math.log(torch.finfo(v.dtype).max)
    ratio = beta * lead * torch.exp((-beta * logs).clamp(max=most))
    near = ratio <= 1
    close = torch.exp(logs + torch.log1p(torch.where(near, ratio, 0.0)) / beta)
    rise = torch.where(near, 1.0, beta * lead)
    far = torch.exp((rise.log() + torch.log1p(torch.where(near, 0.0, torch.exp(beta * logs)) / rise)) / beta)
    return torch.where(support, torch.where(near, close, far), 0.0)


def _newton(lead: Tensor, beta: Tensor, v: Tensor, support: Tensor) -> Tensor:
    w = _weights_above(lead, beta, v, support)
    slope = torch.where(support, (v / torch.where(support, w, 1.0)) ** (beta - 1), 0.0)
    slope = slope.sum(-1, keepdim=True).clamp(min=1)  # that of v itself
    some = support.any(-1, keepdim=True)
    step = torch.where(some, w.sum(-1, keepdim=True) - 1, 0.0) / slope
    return (v - step).clamp(min=torch.finfo(v.dtype).tiny)  # rounding may reach 0, which has no logarithm


def _smallest_weight(lead: Tensor, beta: Tensor, support: Tensor) -> Tensor:
    """v at which the sum is 1, by Newton: the sum is convex in v, so it comes down to the root from 1 / |support|."""
    v = 1 / support.sum(-1, keepdim=True).clamp(min=1).to(lead.dtype)
    unrolled = torch.compiler.is_compiling() or inside_transform()
    for _ in range(_UNROLLED if unrolled else _MOST):
        before, v = v, _newton(lead, beta, v, support)
        # The sum is 1, so a smaller change is rounding.
        if not unrolled and not bool(((v - before).abs() > 8 * torch.finfo(v.dtype).eps).any()):
            break
    return v


ANY_ALPHA = row_map("entmax-any", any_alpha_reference)
BEYOND_TWO = row_map("entmax-beyond-two", beyond_two_reference)


def entmax_weights(logits: Tensor, alpha: float | Tensor) -> Tensor:
    """alpha-entmax along the last dimension; kernels and closed forms serve alpha in [1, 2].

    A high alpha gives few positive weights, 1 is softmax, and below 1 no weight is 0.

    Args:
        logits: (..., keys), float32 or float64.
        alpha: > 0, a number or one per row, (..., 1); it may need a gradient.

    Returns:
        Weights of the same shape, with a sum of 1 per row.

    Examples:
        >>> [round(w, 3) for w in abbe.normalizers.entmax_weights(torch.tensor([1.0, 0.5, -1.0]), 1.5).tolist()]
        [0.674, 0.326, 0.0]
    """
    alpha = number_if_fixed("entmax", "alpha", alpha, 0.0)
    if not isinstance(alpha, Tensor):
        which, params = _map(logits, alpha)
        return row_weights(which, logits, params)
    beta = alpha.to(logits.dtype) - 1
    # A traced graph cannot read values: it uses the maps that take all of them.
    unknown = torch.compiler.is_compiling() or inside_transform()
    if not unknown and bool(((beta >= 0) & (beta <= 1)).all()):
        which, params = entmax_map(logits.new_ones(1), beta)
        return row_weights(which, logits, params)
    beyond = beta > 1
    if not unknown and not bool(beyond.any()):
        return row_weights(ANY_ALPHA, logits, beta)
    sparser = row_weights(BEYOND_TWO, logits, torch.where(beyond, beta, 2.0))
    return torch.where(beyond, sparser, row_weights(ANY_ALPHA, logits, torch.where(beyond, 0.5, beta)))


def _map(logits: Tensor, alpha: float) -> tuple[RowMap, Tensor]:
    if alpha == 1:
        return SOFTMAX, logits.new_ones(1)
    if 1 < alpha <= 2:
        return entmax_map(logits.new_ones(1), alpha - 1)
    return BEYOND_TWO if alpha > 2 else ANY_ALPHA, logits.new_full((1,), alpha - 1)


def number_if_fixed(owner: str, name: str, value: float | Tensor, low: float, closed: bool = False) -> float | Tensor:
    """A parameter as a number if all rows share it and it has no gradient; an AbbeError if it is out of range."""
    if isinstance(value, Tensor):
        if torch.compiler.is_compiling() or inside_transform():
            return value
        if value.numel() != 1 or value.requires_grad:
            fits = (value >= low) if closed else (value > low)
            if not bool((fits & value.isfinite()).all()):
                raise AbbeError(f"{owner}: {name} must be {'>=' if closed else '>'} {low:g} everywhere")
            return value
        value = float(value)
    if not (low <= value < float("inf") if closed else low < value < float("inf")):
        raise AbbeError(f"{owner}: {name} must be a number {'>=' if closed else '>'} {low:g}, got {value!r}")
    return float(value)
