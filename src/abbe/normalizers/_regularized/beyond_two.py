"""alpha-entmax for alpha > 2, by the smallest weight of the support.

What is special: the slope of a weight is infinite where its key enters the support. A threshold tau, as in the other
maps, would need far more digits than there are: at alpha = 20 a weight of 0.1 is a difference of 1e-19 in tau. As a
function of the smallest weight v every other one, (v^beta + beta (l - l_v))^(1/beta), is smooth and convex.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._dispatch import inside_transform
from .._row_map import row_map
from .._rows import NEG_INF, below_top, finish
from .root import lowest_key

_MOST = 50  # Newton steps, a limit for rows in which rounding keeps them alive
_UNROLLED = 18  # in a traced graph, which cannot test for convergence; adversarial rows took 10 at most


def beyond_two_reference(logits: Tensor, params: Tensor) -> Tensor:
    """[beta l - tau]_+^(1/beta), params (beta,), beta = alpha - 1 > 1.

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


BEYOND_TWO = row_map("entmax-beyond-two", beyond_two_reference)
