"""Sparsemax and alpha-entmax: exact zeros, a tunable support."""

from __future__ import annotations

import torch
from torch import Tensor

from ._base import Normalizer
from ._options import PER_HEAD, Option
from ._row_map import RowMap, inside_transform, row_counts, row_map
from ._rows import below_top, diagonal_minus_outer, finish, lowest


def sparsemax_reference(logits: Tensor, params: Tensor) -> Tensor:
    """[scale l - tau]_+, params (scale,). The support is found by a sort; on it tau is a plain mean."""
    offset, visible, top = below_top(logits)
    z = torch.where(visible, params * offset, -2.0)  # beyond the gap of 1
    ordered = z.detach().sort(-1, descending=True).values
    rank = _ranks(z)
    # At least one: a row with NaN has none inside, but gathers one.
    inside = (ordered * rank > ordered.cumsum(-1) - 1).sum(-1, keepdim=True).clamp(min=1)
    support = z >= ordered.gather(-1, inside - 1)
    tau = (torch.where(support, z, 0.0).sum(-1, keepdim=True) - 1) / support.sum(-1, keepdim=True)
    w = torch.where(support, z - tau, 0.0).clamp(min=0)
    w = (w - _excess(w, support.to(w.dtype))).clamp(min=0)
    return finish(w, logits, params, visible, top)


def entmax15_reference(logits: Tensor, params: Tensor) -> Tensor:
    """[scale l / 2 - tau]_+^2, params (scale,). On the support tau solves a quadratic."""
    offset, visible, top = below_top(logits)
    z = torch.where(visible, params * offset / 2, -2.0)
    ordered = z.detach().sort(-1, descending=True).values
    rank = _ranks(z)
    mean = ordered.cumsum(-1) / rank
    rest = (1 - ((ordered**2).cumsum(-1) - rank * mean**2)) / rank
    # Rounding may bring the threshold below -1, where a key has no weight, wherever the threshold is.
    above = (mean - rest.clamp(min=0).sqrt() < ordered) & (ordered > -1)
    inside = above.logical_and(rest > 0).sum(-1, keepdim=True).clamp(min=1)
    support = z >= ordered.gather(-1, inside - 1)
    count = support.sum(-1, keepdim=True)
    # Again from z itself: the sorted values have no gradient.
    mean = torch.where(support, z, 0.0).sum(-1, keepdim=True) / count
    centred = torch.where(support, z - mean, 0.0)
    # Never the root of 0, where its slope is infinite.
    tau = mean - ((1 - (centred**2).sum(-1, keepdim=True)) / count).clamp(min=torch.finfo(z.dtype).tiny).sqrt()
    d = torch.where(support, z - tau, 0.0).clamp(min=0)
    d = (d - _excess(d**2, d, support) / 2).clamp(min=0)
    return finish(d**2, logits, params, visible, top)


def _excess(weights: Tensor, slope: Tensor, where: Tensor | None = None) -> Tensor:
    """The excess of the weights over 1, spread by their slopes in tau (or evenly over `where`): a last Newton step.

    It is applied to the weights, because tau is rounded: its error counts once per key, 1e-4 of a row of 1,000 keys in
    float32. No gradient: in exact arithmetic it is 0.
    """
    weights, slope = weights.detach(), slope.detach()
    step = (weights.sum(-1, keepdim=True) - 1) / slope.sum(-1, keepdim=True).clamp(min=torch.finfo(slope.dtype).tiny)
    return step * (slope if where is None else where)


def _ranks(z: Tensor) -> Tensor:
    return torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)


def log1p_ratio(t: Tensor) -> Tensor:
    """ln(1 + t)/t for t > -1, smooth through 0 in all derivatives."""
    near = t.abs() < 0.25  # |v| <= 1/7 below, so 12 terms of the series in v^2 reach float64
    v = torch.where(near, t, 0.0) / (2 + torch.where(near, t, 0.0))
    series = torch.zeros_like(t)
    for k in range(11, -1, -1):
        series = series * v**2 + 1 / (2 * k + 1)
    far = torch.where(near, 1.0, t)
    return torch.where(near, series * (1 - v), torch.log1p(far) / far)


def _entmax_at(z: Tensor, beta: Tensor, s: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Weights e^s [1 + beta x]_+^(1/beta), x = z e^(-beta s), and w/(1 + beta x), their slope in s."""
    x = z * torch.exp(-beta * s)
    inside = visible & (1 + beta * x > 0)
    x = torch.where(inside, x, 0.0)
    w = torch.where(inside, torch.exp(s + x * log1p_ratio(beta * x)), 0.0)
    return w, w / (1 + beta * x)


def _log_peak(z: Tensor, beta: Tensor, visible: Tensor) -> Tensor:
    """s, the log of the largest weight: Newton on the 1/beta-norm, convex, so it comes down to the root from 0."""
    s = torch.zeros_like(z[..., :1])
    unrolled = torch.compiler.is_compiling() or inside_transform()
    safe = beta.clamp(min=1e-12)  # beta = 0 is softmax, whose root is the limit of the formula
    for _ in range(12 if unrolled else 100):  # adversarial rows took 9 at most
        w, slope = _entmax_at(z, beta, s, visible)
        total, slope = w.sum(-1, keepdim=True), slope.sum(-1, keepdim=True)
        total = torch.where(total > 0, total, 1.0)
        drop = total * torch.expm1(-safe * total.log()) / torch.where(slope > 0, slope, 1.0)
        change = torch.log1p(drop.clamp(min=-0.999999)) / safe  # rounding may reach -1, a logarithm of 0
        s = (s + change).clamp(max=0)
        if not unrolled and bool((change.abs() <= 4 * torch.finfo(s.dtype).eps * (1 - s)).all()):
            break
    return s


def entmax_reference(logits: Tensor, params: Tensor) -> Tensor:
    """[beta scale l - tau]_+^(1/beta), params (scale, beta), 0 <= beta <= 1; beta = 0 is softmax.

    Two more Newton steps with gradients, taken at the root, carry its derivatives up to the third order.
    """
    scale, beta = params[..., 0:1], params[..., 1:2]
    offset, visible, top = below_top(logits)
    z = (scale * offset).clamp(min=lowest(logits))
    with torch.no_grad():
        s = _log_peak(z.detach(), beta.detach(), visible)
    # A Newton step at the root doubles the order up to which derivatives are right: two are enough for the third.
    for _ in range(2):
        w, slope = _entmax_at(z, beta, s, visible)
        some = visible.any(-1, keepdim=True)
        total = torch.where(some, w.sum(-1, keepdim=True), 1.0)
        slope = torch.where(some, slope.sum(-1, keepdim=True), 1.0)
        s = s - total.log() * total / slope
    w, slope = _entmax_at(z, beta, s, visible)
    return finish((w - _excess(w, slope)).clamp(min=0), logits, params, visible, top)


SPARSEMAX = row_map("sparsemax", sparsemax_reference, "entmax.sparsemax")
ENTMAX15 = row_map("entmax15", entmax15_reference, "entmax.entmax15")
ENTMAX = row_map("entmax", entmax_reference, "entmax.entmax")


def entmax_map(scale: Tensor, beta: Tensor | float) -> tuple[RowMap, Tensor]:
    """alpha-entmax of scale * logits, beta = alpha - 1; the closed forms for a fixed alpha of 1.5 and 2."""
    if isinstance(beta, float):
        if beta in (0.5, 1.0):
            return (ENTMAX15 if beta == 0.5 else SPARSEMAX), scale
        beta = torch.full_like(scale[..., :1], beta)
    return ENTMAX, torch.cat(torch.broadcast_tensors(scale, beta), -1)  # type: ignore[no-untyped-call]


def entmax_jacobian(weights: Tensor, scale: Tensor, beta: Tensor | float) -> Tensor:
    """scale (diag u - u u^T / sum u), u = w^(2 - alpha) on the support."""
    support = weights > 0
    u = torch.where(support, torch.where(support, weights, 1.0) ** (1 - beta), 0 * weights)  # NaN stays NaN
    total = u.sum(-1, keepdim=True)
    return diagonal_minus_outer(scale * u, scale * u, u / torch.where(total > 0, total, 1.0))


def entmax_lipschitz(alpha: float, keys: int) -> float:
    """Largest spectral norm of the Jacobian: at two weights of 1/2, or at one against keys - 1 equal ones; keys >= 2.

    docs/reference/proofs.md has the proof.
    """
    halves, others = 2 ** (alpha - 2), keys - 1
    if others == 1:
        return float(halves)  # the term below is the same then, but rounds to more than it does for three keys
    against_all = keys / others / (1 + others ** ((1 - alpha) / (3 - alpha))) ** (3 - alpha)
    return float(min(max(halves, against_all), 1.0))


_ALPHA = Option("alpha", 1.5, "sparsity", low=1, high=2, closed="high", shown=True)
_USUAL_ALPHAS = (1.1, 1.2, 1.25, 1.3, 1.5, 1.75, 1.9, 2)


class ScaledEntmax(Normalizer):
    """alpha-entmax of c l with one scale c per row. Jacobian c (diag u - u u^T / sum u), u = w^(2 - alpha)."""

    def _scale(self, logits: Tensor) -> Tensor:
        return logits.new_ones(1)

    def _beta(self, logits: Tensor) -> Tensor | float:
        """alpha - 1."""
        if "alpha" in self.learned:
            return self._learned("alpha").above_low().to(logits.dtype)
        fixed: float = self._given["alpha"]
        return fixed - 1

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        return entmax_map(self._scale(logits), self._beta(logits))

    def _jacobian(self, logits: Tensor) -> Tensor:
        return entmax_jacobian(self._weights(logits), self._scale(logits), self._beta(logits))


class Sparsemax(ScaledEntmax):
    """[l - tau]_+, the projection on the simplex, arXiv 1602.02068.

    Jacobian diag(1_S) - 1_S 1_S^T / |S| on the support S. Lipschitz constant 1: the spectral norm is 0 or 1. As
    n grows nothing changes as long as new keys lie a gap of 1 below the top: they get exactly 0.
    """

    name = "sparsemax"
    meaning = "exact zeros; a key more than 1 below the top gets nothing, high logits spread means few keys"
    paper = "1602.02068"

    def _beta(self, logits: Tensor) -> float:
        return 1.0

    def _lipschitz(self, keys: int) -> float:
        return 1.0


class Entmax(ScaledEntmax):
    """[(alpha - 1) l - tau]_+^(1/(alpha - 1)), alpha in (1, 2] fixed or learned per head, arXiv 1905.05702, 1909.00015.

    Jacobian diag u - u u^T / sum u, u = w^(2 - alpha) on the support. Lipschitz constant between 1/2 (alpha -> 1)
    and 1 (alpha = 2); at alpha = 1.5 it is 0.707 for short rows and 0.869 at 1,024 keys. As n grows the support
    stays within the keys closer than 1/(alpha - 1) to the top, however many others there are.
    """

    name = "entmax"
    aliases = ("alpha-entmax",)
    meaning = "tunable sparsity; high alpha means few keys (2 is sparsemax), low alpha means many (1 is softmax)"
    paper = "1905.05702, 1909.00015"
    options = (_ALPHA, *PER_HEAD)
    usual = _USUAL_ALPHAS
    learnable = ("alpha",)

    def _lipschitz(self, keys: int) -> float:
        return entmax_lipschitz(self._largest("alpha"), keys)


class AdaptiveScalableEntmax(ScaledEntmax):
    """alpha-entmax((delta + beta (ln n)^gamma) l), n the visible keys (at least 2), arXiv 2506.16640.

    Jacobian and Lipschitz constant of entmax times the scale (an upper bound over row lengths). As n grows the
    scale follows (ln n)^gamma, so that a fixed lead can hold a fixed support; made for training. The paper computes
    beta and gamma from the hidden state of each query; here they are numbers, the same for all queries of a head.
    """

    name = "asentmax"
    aliases = ("adaptive-scalable-entmax",)
    meaning = "entmax that follows the row length; high beta or gamma means sharper long rows, beta near 0 is entmax"
    paper = "2506.16640"
    example = "asentmax:alpha=1.5,beta=0.5"
    options = (
        _ALPHA,
        Option("delta", 1.0, "scale without regard to length", low=0, closed="low"),
        Option("beta", 1.0, "strength of the growth with length", low=0, closed="low"),
        Option("gamma", 1.0, "power of ln n", low=-3, high=3),
        *PER_HEAD,
    )
    usual = _USUAL_ALPHAS
    learnable = ("delta", "beta", "gamma")

    def _scale(self, logits: Tensor) -> Tensor:
        delta, beta, gamma = (self._value(name, logits) for name in ("delta", "beta", "gamma"))
        return delta + beta * row_counts(logits).clamp(min=2).log() ** gamma

    def _lipschitz(self, keys: int) -> float:
        with torch.no_grad():
            ends = [self._scale(torch.zeros(self._given["heads"], 1, n, dtype=torch.float64)).max() for n in (2, keys)]
        return float(max(ends)) * entmax_lipschitz(self.alpha, keys)
