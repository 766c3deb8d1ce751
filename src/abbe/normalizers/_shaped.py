"""Softmax followed by a pointwise map of its weights: clipped, elastic, self-adjusted."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._base import Normalizer
from ._options import Option, PerHead, heads_option, learn_option
from ._row_map import RowMap, below_top, diagonal_minus_outer, finish, masked_softmax, row_map


def plain_softmax(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """softmax(l), then the visible keys and the top of each row."""
    z, visible, top = below_top(logits)
    return masked_softmax(z, visible), visible, top


def clipped_reference(logits: Tensor, params: Tensor) -> Tensor:
    zeta, gamma = params[..., 0:1], params[..., 1:2]
    p, visible, top = plain_softmax(logits)
    stretched = (zeta - gamma) * p + gamma
    inside = (stretched > 0) & (stretched < 1)  # no gradient in the dead zones, their edges included
    return finish(torch.where(inside, stretched, (stretched >= 1).to(logits.dtype)), logits, params, visible, top)


def elastic_reference(logits: Tensor, params: Tensor) -> Tensor:
    p, visible, top = plain_softmax(logits)
    offset = params / visible.sum(-1, keepdim=True).clamp(min=1)
    return finish(torch.relu(p + offset), logits, params, visible, top)


_SMALLEST_WIDTH = 5e-38  # of half a row, so that 1/width stays finite in float32; a narrower row counts as zeros


def _low_and_high(logits: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Of half the logits, as is all that is computed from them: the width of any finite row is finite."""
    filled = torch.where(visible, logits / 2, 0.0)
    low, high = filled.amin(-1, keepdim=True), filled.amax(-1, keepdim=True)
    return torch.where(low < 0, low, 0.0), torch.where(high > 0, high, 0.0)


def self_adjusted_reference(logits: Tensor, params: Tensor) -> Tensor:
    p, visible, top = plain_softmax(logits)
    low, high = _low_and_high(logits, visible)
    wide = high - low > _SMALLEST_WIDTH
    ratio = torch.where(wide, (torch.where(visible, logits / 2, 0.0) - low) / torch.where(wide, high - low, 1.0), 1.0)
    return finish(ratio * p, logits, params, visible, top)


CLIPPED = row_map("clipped", clipped_reference, "shaped", "clipped_forward", "clipped_backward")
ELASTIC = row_map("elastic", elastic_reference, "shaped", "elastic_forward", "elastic_backward")
SELF_ADJUSTED = row_map(
    "self-adjusted", self_adjusted_reference, "shaped", "self_adjusted_forward", "self_adjusted_backward"
)


class ClippedSoftmax(Normalizer):
    """clip((zeta - gamma) softmax(l) + gamma, 0, 1), zeta >= 1, gamma <= 0, arXiv 2306.12929.

    Jacobian (zeta - gamma) D (diag p - p p^T), p = softmax(l), D = 1 where nothing is clipped. Lipschitz constant
    (zeta - gamma)/2 (an upper bound when two equal weights are clipped already). As n grows weights below
    -gamma/(zeta - gamma) become exact zeros, so a long flat row gives nothing at all.
    """

    name = "clipped"
    aliases = ("clipped-softmax",)
    meaning = "exact zeros and ones; low gamma means more zeros, high zeta means more ones"
    paper = "2306.12929"
    example = "clipped:gamma=-0.03"
    options = (
        Option("zeta", 1.003, "upper end of the stretch", low=1, closed="low"),
        Option("gamma", -0.003, "lower end of the stretch", low=-1e6, high=0, closed="high"),
    )
    sums_to_one = False
    zeta: float
    gamma: float

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        return CLIPPED, logits.new_tensor([self.zeta, self.gamma])

    def _jacobian(self, logits: Tensor) -> Tensor:
        w, p = self._weights(logits), plain_softmax(logits)[0]
        passed = torch.where((w > 0) & (w < 1), (self.zeta - self.gamma) * p, 0.0)
        return diagonal_minus_outer(passed, passed, p)

    def _lipschitz(self, keys: int) -> float:
        return (self.zeta - self.gamma) / 2 if keys > 1 else 0.0


class ElasticSoftmax(Normalizer):
    """relu(softmax(l) + tau / n), n the visible keys (the query's position under a causal mask), tau per head,
    arXiv 2601.00919.

    Jacobian D (diag p - p p^T), p = softmax(l), D = 1 where the weight is positive. Lipschitz constant 1/2. As n
    grows the offset keeps pace with the flat weight 1/n: with tau = -1 a key below average gets exactly 0.
    """

    name = "elastic"
    aliases = ("elastic-softmax",)
    meaning = "removes the sink; low tau means more keys get exactly nothing, tau = 0 is softmax"
    paper = "2601.00919"
    example = "elastic:tau=-1"
    options = (
        Option("tau", -1.0, "offset in units of the flat weight 1/n", shown=True),
        learn_option(),
        heads_option(),
    )
    learnable = ("tau",)
    tau: PerHead
    sums_to_one = False

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        return ELASTIC, self._value("tau", logits)

    def _jacobian(self, logits: Tensor) -> Tensor:
        w, p = self._weights(logits), plain_softmax(logits)[0]
        passed = torch.where(w > 0, p, 0.0)
        return diagonal_minus_outer(passed, passed, p)

    def _lipschitz(self, keys: int) -> float:
        return 0.5 if keys > 1 else 0.0


class SelfAdjustedSoftmax(Normalizer):
    """(l - low)/(high - low) softmax(l), low = min(l_min, 0), high = max(l_max, 0), arXiv 2502.18277. A row of
    zeros, where the ratio is 0/0, is plain softmax.

    Jacobian D (diag p - p p^T) + diag(p)/(high - low) and terms at the extreme keys, D the ratio. Lipschitz
    constant infinite: 1/(high - low) near a row of zeros. As n grows it disperses like softmax.
    """

    name = "self-adjusted"
    aliases = ("self-adjusted-softmax",)
    meaning = "keeps gradients alive where softmax is saturated; low logits lose weight beyond softmax"
    paper = "2502.18277"
    example = "self-adjusted"
    sums_to_one = False
    continuous = False  # at a row of zeros

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        return SELF_ADJUSTED, logits.new_zeros(1)

    def _jacobian(self, logits: Tensor) -> Tensor:
        p, visible, _ = plain_softmax(logits)
        low, high = _low_and_high(logits, visible)
        wide = high - low > _SMALLEST_WIDTH
        inverse = torch.where(wide, 1 / torch.where(wide, high - low, 1.0), 0.0)
        half = torch.where(visible, logits / 2, 0.0)
        ratio = torch.where(visible, torch.where(wide, (half - low) * inverse, 1.0), 0.0)
        inverse = inverse / 2
        at_low, at_high = _shares((half == low) & (low < 0)), _shares((half == high) & (high > 0))
        jacobian = diagonal_minus_outer(ratio * p + inverse * p, ratio * p, p)
        jacobian = jacobian - ((1 - ratio) * inverse * p).unsqueeze(-1) * at_low.unsqueeze(-2)
        return jacobian - (ratio * inverse * p).unsqueeze(-1) * at_high.unsqueeze(-2)

    def _lipschitz(self, keys: int) -> float:
        return math.inf if keys > 1 else 0.0


def _shares(where: Tensor) -> Tensor:
    """1 split evenly among the marked keys of a row."""
    return where / where.sum(-1, keepdim=True).clamp(min=1)
