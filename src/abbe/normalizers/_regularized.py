"""Regularised argmax: the p that maximises <l, p> - Omega(p), where a search finds one number per row first."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .._errors import AbbeError
from ._base import Normalizer
from ._entmax import entmax_map, log1p_ratio
from ._options import PER_HEAD, Option
from ._row_map import RowMap, inside_transform, row_map, row_weights
from ._rows import NEG_INF, below_top, diagonal_minus_outer, finish, visible_and_top
from ._softmax import SOFTMAX

__all__ = ["budget_weights", "entmax_weights", "normmax_weights"]

Sums = Callable[..., tuple[Tensor, Tensor]]
_MOST = 200  # bisecting to float64 in every other step would take 120
_UNROLLED = 16  # in a traced graph; adversarial rows took 8 at most


def powers_below(z: Tensor, beta: Tensor, s: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """w = [e^(beta s) + beta z]_+^(1/beta) for z <= 0 and any beta > -1, and 1 + beta z e^(-beta s) on its support."""
    most = 0.9 * math.log(torch.finfo(z.dtype).max)
    unit = torch.exp((-beta * s).clamp(max=most))  # beyond, only keys equal to the top are left, where z = 0
    x = z * unit
    inside = visible & (1 + beta * x > 0)
    x = torch.where(inside, x, 0.0)
    return torch.where(inside, torch.exp(s + x * log1p_ratio(beta * x)), 0.0), 1 + beta * x


def _newton_step(s: Tensor, total: Tensor, slope: Tensor, some: Tensor) -> Tensor:
    """One step towards log total = 0; a row without keys stays where it is."""
    total, slope = torch.where(some, total, 1.0), torch.where(some, slope, 1.0)
    return s - total.log() * total / slope


def log_peak(sums: Sums, low: Tensor, some: Tensor, *variables: Tensor) -> Tensor:
    """s in [low, 0] at which total = 1; `sums`(s, *variables) are total, which increases with s, and its slope.

    Two Newton steps with gradients, taken at the root, carry its derivatives up to the third order.
    """
    with torch.no_grad():
        fixed = [x.detach() for x in variables]
        s = _search(lambda s: sums(s, *fixed), low.detach(), some)
    for _ in range(2):
        s = _newton_step(s, *sums(s, *variables), some)
    return s


def _search(sums: Sums, low: Tensor, some: Tensor) -> Tensor:
    """The root without derivatives, by Newton on log total.
    If a step leaves the bracket or is more than half as long as the one before last, the bracket
       is halved instead: log total is neither convex nor concave.
    """
    s, high = torch.zeros_like(low), torch.zeros_like(low)
    low = low - 8 * torch.finfo(low.dtype).eps * (1 - low)  # the root of equal logits lies on the edge
    step = before = high - low
    unrolled = torch.compiler.is_compiling() or inside_transform()
    for _ in range(_UNROLLED if unrolled else _MOST):
        total, slope = sums(s)
        newton = _newton_step(s, total, slope, some)
        low = torch.where(some & (total <= 1), s, low)
        high = torch.where(some & (total >= 1), s, high)
        trusted = (newton >= low) & (newton <= high) & ((newton - s).abs() <= before / 2)
        following = torch.where(trusted | ~some, newton, (low + high) / 2)
        before, step = step, (following - s).abs()
        s = following
        if not unrolled and not bool((step > 2 * torch.finfo(s.dtype).eps * (1 - s)).any()):
            break
    return s


def lowest_key(z: Tensor, belongs: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Index of the lowest key whose level belongs, and whether any does; if a level belongs, all above it do.

    A bisection over the sorted keys; -inf is an absent key, which never belongs.
    """
    ordered, order = torch.where(z.isnan(), NEG_INF, z).sort(-1, descending=True)
    keys = z.shape[-1]
    inside = torch.zeros_like(order[..., :1])  # this many keys belong for certain
    outside = torch.full_like(inside, keys + 1)
    for _ in range(math.ceil(math.log2(keys + 1))):
        middle = ((inside + outside) // 2).clamp(min=1, max=keys)
        level = ordered.gather(-1, middle - 1)
        visible = level > NEG_INF
        further = visible & belongs(torch.where(visible, level, 0.0))
        inside, outside = torch.where(further, middle, inside), torch.where(further, outside, middle)
    return order.gather(-1, (inside - 1).clamp(min=0)), inside > 0


_NEWTON_STEPS = 50  # Newton steps, a limit for rows in which rounding keeps them alive
_NEWTON_UNROLLED = 18  # in a traced graph, which cannot test for convergence; adversarial rows took 10 at most


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
    for _ in range(_NEWTON_UNROLLED if unrolled else _NEWTON_STEPS):
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


def budget_reference(logits: Tensor, params: Tensor) -> Tensor:
    """clip(l - tau, 0, 1) with the sum min(budget, n), params (budget,).

    The sum falls as tau grows, so two bisections over the sorted keys find which weights are 0 and which are 1. On
    the others tau is a mean.
    """
    visible, top = visible_and_top(logits)
    budget = torch.minimum(params, visible.sum(-1, keepdim=True).to(logits.dtype))
    z = torch.where(visible, logits, 0.0)
    with torch.no_grad():
        full, between = _sets(logits.detach(), visible, budget.detach())
        # Offsets from a key between the bounds, not from the top: far below a leading key they would lose their digits.
        highest = torch.where(between, logits.detach(), NEG_INF).amax(-1, keepdim=True)
        anchor = torch.where(highest > NEG_INF, highest, 0.0)
    offset = torch.where(between, z - anchor, 0.0)
    members = between.sum(-1, keepdim=True).clamp(min=1)
    tau = (offset.sum(-1, keepdim=True) + full.sum(-1, keepdim=True) - budget) / members
    w = torch.where(full, 1.0, torch.where(between, offset - tau, 0.0)).clamp(0, 1)
    excess = (w.detach().sum(-1, keepdim=True) - budget.detach()) / members  # no gradient: exactly it is 0
    return finish((w - torch.where(between, excess, 0.0)).clamp(0, 1), logits, params, visible, top)


def _sets(logits: Tensor, visible: Tensor, budget: Tensor) -> tuple[Tensor, Tensor]:
    """The keys of weight 1, and those between 0 and 1."""

    def total(level: Tensor, of_level: float) -> Tensor:
        """The sum if tau is such that a key at this level weighs 0 or 1."""
        return torch.where(visible, (logits - level + of_level).clamp(0, 1), 0.0).sum(-1, keepdim=True)

    def reaching(lowest: tuple[Tensor, Tensor]) -> Tensor:
        index, some = lowest
        return visible & some & (logits >= logits.gather(-1, index))

    positive = reaching(lowest_key(logits, lambda level: total(level, 0.0) < budget))
    full = reaching(lowest_key(logits, lambda level: total(level, 1.0) <= budget))
    return full, positive & ~full


BUDGET = row_map("budget", budget_reference)


def budget_weights(logits: Tensor, budget: float | Tensor) -> Tensor:
    """Weights in [0, 1] with a given sum, along the last dimension: a high budget selects many keys, a low one few.

    Args:
        logits: (..., keys), float32 or float64.
        budget: >= 0, a number or one per row, (..., 1); it may need a gradient.

    Returns:
        Weights of the same shape, with the sum min(budget, n) per row.

    Examples:
        >>> abbe.normalizers.budget_weights(torch.tensor([3.0, 0.5, 0.0]), 2.0).tolist()
        [1.0, 0.75, 0.25]
    """
    budget = number_if_fixed("budget", "budget", budget, 0.0, closed=True)
    params = budget.to(logits.dtype) if isinstance(budget, Tensor) else logits.new_full((1,), budget)
    return row_weights(BUDGET, logits, params)


class Budget(Normalizer):
    """clip(l - tau, 0, 1) with the sum min(budget, n): the nearest point to l with weights in [0, 1],
    arXiv 2402.13725 (k-subsets).

    Jacobian diag(1_B) - 1_B 1_B^T / |B| on the keys B with weights strictly between 0 and 1. Lipschitz constant 1:
    the spectral norm is 0 or 1; 0 for rows of no more keys than the budget, where all weights are 1. As n grows
    nothing changes as long as new keys lie below tau. A budget of 1 is sparsemax.
    """

    name = "budget"
    aliases = ("k-subsets", "budget-sparsemax")
    meaning = "a soft subset of given size, no key above 1; high budget means many keys, 1 is sparsemax"
    paper = "2402.13725"
    options = (Option("budget", 2.0, "sum of the weights", low=0, shown=True),)
    usual = (2, 4, 8, 16, 32)
    sums_to_one = False
    row_map = BUDGET

    def _jacobian(self, logits: Tensor) -> Tensor:
        w = self._weights(logits)
        between = torch.where((w > 0) & (w < 1), 1.0, 0 * w)  # NaN stays NaN
        members = between.sum(-1, keepdim=True)
        return diagonal_minus_outer(between, between, between / torch.where(members > 0, members, 1.0))

    def _lipschitz(self, keys: int) -> float:
        return 1.0 if keys > max(self.budget, 1) else 0.0


_HARD = 1e-6  # for a smaller alpha - 1 the limit is used, argmax


def normmax_reference(logits: Tensor, params: Tensor) -> Tensor:
    """u / sum u, u = [l - tau]_+^(1/(alpha - 1)) with ||u||_alpha = 1, params (alpha,).

    The log of the largest u is found as for entmax. For alpha <= 1 a vertex is best: the top has all the weight, and
    equal keys share it.
    """
    soft = params - 1 > _HARD
    alpha = torch.where(soft, params, 2.0)
    beta = alpha - 1
    gap, visible, top = below_top(logits)
    some = visible.any(-1, keepdim=True)
    z = gap.clamp(min=-2) / beta  # a gap of 1 has no weight, and a large one over a small beta would overflow

    def sums(s: Tensor, z: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        u, above = powers_below(z, alpha - 1, s, visible)
        unit = torch.exp((alpha - 1) * s)  # u^alpha = u unit above: no power of a zero is taken
        return unit * (u * above).sum(-1, keepdim=True), alpha * unit * u.sum(-1, keepdim=True)

    count = visible.sum(-1, keepdim=True).clamp(min=1).to(z.dtype)
    s = log_peak(sums, -count.log() / alpha, some, z, alpha)
    u, _ = powers_below(z, beta, s, visible)
    u = torch.where(soft, u, (visible & (gap == 0)).to(u.dtype))
    total = u.sum(-1, keepdim=True)
    return finish(u / torch.where(some, total, 1.0), logits, params, visible, top)


NORMMAX = row_map("normmax", normmax_reference)


def normmax_weights(logits: Tensor, alpha: float | Tensor) -> Tensor:
    """Normmax along the last dimension: a high alpha spreads the weight over the keys near the top, 1 is argmax.

    Args:
        logits, alpha: as for `entmax_weights`; so are the weights.

    Examples:
        >>> [round(w, 3) for w in abbe.normalizers.normmax_weights(torch.tensor([1.0, 0.5, -1.0]), 2.0).tolist()]
        [0.689, 0.311, 0.0]
    """
    alpha = number_if_fixed("normmax", "alpha", alpha, 0.0)
    params = alpha.to(logits.dtype) if isinstance(alpha, Tensor) else logits.new_full((1,), alpha)
    return row_weights(NORMMAX, logits, params)


class Normmax(Normalizer):
    """The p on the simplex that maximises <l, p> - ||p||_alpha, alpha > 1, arXiv 1901.02324, 2402.13725.

    Jacobian c (I - w 1^T) diag b (I - 1 w^T), b = w^(2 - alpha) on the support, c = ||w||_alpha^(alpha - 1) /
    (alpha - 1). Lipschitz constant n at alpha = 2; below, at most n^(alpha - 1)/(alpha - 1), because I - w 1^T is an
    oblique projection, whose norm grows with the support near a vertex; above, infinite, because b explodes where a
    key enters the support. As n grows nothing changes as long as new keys lie a gap of 1 below the top.
    """

    name = "normmax"
    meaning = "flat weights on the support; high alpha means nearly equal weights, low alpha means one key"
    paper = "1901.02324, 2402.13725"
    options = (Option("alpha", 2.0, "order of the norm", low=1, shown=True), *PER_HEAD)
    usual = (1.25, 1.5, 2, 3, 5)
    learnable = ("alpha",)
    row_map = NORMMAX

    def _jacobian(self, logits: Tensor) -> Tensor:
        alpha, w = self._value("alpha", logits), self._weights(logits)
        support = w > 0
        positive = torch.where(support, w, 1.0)
        b = torch.where(support, positive ** (2 - alpha), 0 * w)  # NaN stays NaN
        norm = torch.where(support, positive**alpha, 0 * w).sum(-1, keepdim=True) ** ((alpha - 1) / alpha)
        soft = alpha - 1 > _HARD
        c = torch.where(soft, norm / torch.where(soft, alpha - 1, 1.0), 0.0)
        outer = w.unsqueeze(-1) * b.unsqueeze(-2)
        total = b.sum(-1, keepdim=True).unsqueeze(-1)
        inner = torch.diag_embed(b) - outer - outer.mT + total * w.unsqueeze(-1) * w.unsqueeze(-2)
        return c.unsqueeze(-1) * inner

    def _lipschitz(self, keys: int) -> float:
        # With q = sqrt(b), J = c M M^T and M^T = (I - q (w/q)^T) diag q. The first factor is an oblique projection, its
        # norm |q| |w/q|: |J| <= c sum w^(1 - beta) sum w^(1 + beta) max b <= n^beta / beta for beta = alpha - 1 <= 1.
        betas = [alpha - 1 for alpha in self._numbers("alpha")]
        return max(math.inf if beta > 1 else keys**beta / beta for beta in betas)
