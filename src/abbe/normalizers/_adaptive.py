"""Softmax whose temperature follows from the row: from its entropy, or from its standard deviation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._base import Normalizer
from ._options import Option
from ._row_map import (
    RowMap,
    below_top,
    diagonal_minus_outer,
    finish,
    masked_softmax,
    row_map,
    softmax_jacobian,
    visible_and_top,
)

# beta(H), highest power first.
COEFFICIENTS = (-0.037, 0.481, -2.3, 4.917, -1.791)


def sharpening(entropy: Tensor) -> Tensor:
    """beta(H): at least 1, and 1 up to an entropy of 0.5 nats."""
    value = torch.zeros_like(entropy)
    for coefficient in COEFFICIENTS:
        value = value * entropy + coefficient
    return torch.where((entropy > 0.5) & (value > 1), value, 1.0)


def entropy_reference(logits: Tensor, params: Tensor) -> Tensor:
    z, visible, top = below_top(logits)
    return finish(masked_softmax(sharpening(_entropy(z, visible)) * z, visible), logits, params, visible, top)


def _entropy(z: Tensor, visible: Tensor) -> Tensor:
    """lse - mean score, which stays smooth where a weight underflows."""
    some = visible.any(-1, keepdim=True)
    lse = torch.logsumexp(torch.where(visible | ~some, z, -math.inf), -1, keepdim=True)
    return lse - (masked_softmax(z, visible) * z).sum(-1, keepdim=True)


def deviation_reference(logits: Tensor, params: Tensor) -> Tensor:
    """softmax(l / min(std, gamma)), params (gamma,)."""
    half, visible, top = _half_below_top(logits)
    scale = _inverse(_deviation(half, visible), params)
    return finish(masked_softmax(scale * half * 2, visible), logits, params, visible, top)


_FLAT = 1e-37  # 1/deviation must stay finite in float32; a row flatter than this gets equal weights


def _inverse(sd: Tensor, gamma: Tensor) -> Tensor:
    """1/min(std, gamma), 0 for a flat row."""
    divisor = torch.where(sd < gamma, sd, gamma)
    return torch.where(sd > _FLAT, 1 / torch.where(sd > _FLAT, divisor, 1.0), 0.0)


def _half_below_top(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`below_top` of half the logits: exact, and the range of any finite row is finite."""
    visible, top = visible_and_top(logits)
    return torch.where(visible, logits / 2 - top / 2, 0.0), visible, top


def _deviation(half: Tensor, visible: Tensor) -> Tensor:
    n = visible.sum(-1, keepdim=True).clamp(min=1)
    # In units of the range, which cancels: the square of a tiny gap would underflow, that of a large one overflow.
    span = half.detach().abs().amax(-1, keepdim=True)
    unit = torch.where(span > 0, half / torch.where(span > 0, span, 1.0), 0.0)
    centred = torch.where(visible, unit - unit.sum(-1, keepdim=True) / n, 0.0)
    variance = (centred**2).sum(-1, keepdim=True) / n
    return span * torch.where(variance > 0, torch.where(variance > 0, variance, 1.0).sqrt(), 0.0) * 2


ENTROPY = row_map("adaptive-temperature", entropy_reference, "shaped", "entropy_forward", "entropy_backward")
DEVIATION = row_map("norm-softmax", deviation_reference, "shaped", "deviation_forward", "deviation_backward")


class AdaptiveTemperature(Normalizer):
    """softmax(beta(H) l), H the entropy of softmax(l), beta = max(polyval([-0.037, 0.481, -2.3, 4.917, -1.791], H), 1)
    if H > 0.5 else 1, arXiv 2410.01104; made for inference.

    Jacobian beta (diag w - w w^T) + (w (l - mean_w l)) (beta'(H) dH/dl)^T. `lipschitz` is an upper bound:
    1.2 + 3 (sqrt(ln n / e) + ln n)^2. As n grows entropy rises and beta with it, to about 2.4 at 4 nats, then
    falls back to 1 above 6 nats: very long rows disperse like softmax.
    """

    name = "adaptive-temperature"
    meaning = "sharpens rows of middling entropy; high entropy (0.5 to 6 nats) means a stronger correction"
    paper = "2410.01104"
    example = "adaptive-temperature"

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        return ENTROPY, logits.new_zeros(1)

    def _jacobian(self, logits: Tensor) -> Tensor:
        z, visible, _ = below_top(logits)
        plain, entropy = masked_softmax(z, visible), _entropy(z, visible).detach().requires_grad_()
        with torch.enable_grad():
            beta = sharpening(entropy)
            (slope,) = torch.autograd.grad(beta.sum(), entropy)
        beta, entropy, w = beta.detach(), entropy.detach(), self._weights(logits)
        log_plain = torch.where(plain > 0, torch.where(plain > 0, plain, 1.0).log(), 0.0)
        spread = w * (z - (w * z).sum(-1, keepdim=True))
        return softmax_jacobian(w, beta) - spread.unsqueeze(-1) * (slope * plain * (log_plain + entropy)).unsqueeze(-2)

    def _lipschitz(self, keys: int) -> float:
        # ||J|| <= beta/2 + |beta'| V^2 / beta with V >= ||p (ln p + H)||, V = sqrt(ln n / e) + ln n,
        # 1 <= beta <= 2.4 and |beta'| <= 3 where beta > 1.
        if keys == 1:
            return 0.0
        spread = math.sqrt(math.log(keys) / math.e) + math.log(keys)
        return 1.2 + 3 * spread**2


class NormSoftmax(Normalizer):
    """softmax(l / min(std(l), gamma)), std over the visible keys, IEEE COINS 2023.

    Jacobian c (diag w - w w^T) + (w (l - mean_w l)) (dc/dl)^T with c = 1/min(std, gamma),
    dc/dl = -c^3 (l - mean) / n while std < gamma. Lipschitz constant infinite: c grows without bound as the row
    becomes flat, where it jumps to equal weights. As n grows it disperses like softmax of logits with unit deviation.
    """

    name = "norm-softmax"
    meaning = "scale-free in the logits; low gamma means sharper weights, high gamma divides by the deviation alone"
    paper = "IEEE COINS 2023, NormSoftmax"
    example = "norm-softmax:gamma=1"
    options = (Option("gamma", 1.0, "largest deviation to divide by", low=0),)
    usual = (0.5, 1, 2)
    continuous = False  # at a flat row
    gamma: float

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        return DEVIATION, self._value("gamma", logits)

    def _jacobian(self, logits: Tensor) -> Tensor:
        half, visible, _ = _half_below_top(logits)
        n, sd, w = visible.sum(-1, keepdim=True).clamp(min=1), _deviation(half, visible), self._weights(logits)
        scale = _inverse(sd, self._value("gamma", logits))
        centred = torch.where(visible, half - (half / n).sum(-1, keepdim=True), 0.0)
        slope = torch.where((sd > _FLAT) & (sd < self.gamma), scale**3 * 2 / n, 0.0) * centred
        spread = w * (half - (w * half).sum(-1, keepdim=True)) * 2
        return diagonal_minus_outer(scale * w, scale * w, w) - spread.unsqueeze(-1) * slope.unsqueeze(-2)

    def _lipschitz(self, keys: int) -> float:
        return math.inf if keys > 1 else 0.0
