"""Maps that gate each key by its own logit: sigmoid, normalised ReLU^p, softpick, and stick-breaking."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from ._base import Normalizer
from ._options import Option
from ._row_map import RowMap, diagonal_minus_outer, finish, row_counts, row_map, visible_and_top


def sigmoid_reference(logits: Tensor, params: Tensor) -> Tensor:
    """sigmoid(l + bias), params (bias,), NaN for -ln n."""
    bias = torch.where(torch.isnan(params), -row_counts(logits).clamp(min=1).log(), params)
    return torch.sigmoid(logits + bias)


def relu_reference(logits: Tensor, params: Tensor) -> Tensor:
    """relu(l)^p / (sum relu(l)^p + eps), params (p, eps); in units of the largest logit, which cancel."""
    power, eps = params[..., 0:1], params[..., 1:2]
    visible, top = visible_and_top(logits)
    unit = top.clamp(min=1e-30)  # a row without positive logits has no unit, and needs none
    positive = visible & (logits > 0)
    # Two `where`: values that the outer one drops must have a finite gradient, too, as 0 * NaN is NaN.
    raised = torch.where(positive, torch.where(positive, logits / unit, 1.0) ** power, 0.0)
    total = raised.sum(-1, keepdim=True) + torch.where(eps > 0, eps / unit**power, 0.0)
    return finish(raised / torch.where(total > 0, total, 1.0), logits, params, visible, top)


def _expm1_scaled(logits: Tensor, visible: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """(e^l - 1) e^-m and e^-m with m = max(top, 0): finite for any logits, exact for small ones."""
    shift = top.clamp(min=0)
    unit = torch.exp(-shift)
    # expm1 where e^l - 1 would cancel, shifted below the top where e^l would overflow.
    small = visible & (logits.abs() < 1)
    shifted = torch.where(visible & ~small, logits - shift, 0.0)
    size = torch.where(small, torch.expm1(torch.where(small, logits, 0.0)) * unit, torch.exp(shifted) - unit)
    return torch.where(visible, size, 0.0), unit


def softpick_reference(logits: Tensor, params: Tensor) -> Tensor:
    """relu(e^l - 1) / (sum |e^l - 1| + eps), params (eps,)."""
    visible, top = visible_and_top(logits)
    size, unit = _expm1_scaled(logits, visible, top)
    total = size.abs().sum(-1, keepdim=True) + params * unit
    return finish(torch.relu(size) / torch.where(total > 0, total, 1.0), logits, params, visible, top)


def stick_breaking_reference(logits: Tensor, params: Tensor) -> Tensor:
    """beta_i prod_{k > i} (1 - beta_k), beta = sigmoid(l), in logarithms."""
    visible, top = visible_and_top(logits)
    filled = torch.where(visible, logits, 0.0)
    # A product over thousands of keys would underflow, and its gradient would be 0/0.
    rest = torch.where(visible, logsigmoid(-filled), 0.0)
    later = pad(rest.flip(-1).cumsum(-1)[..., :-1], (1, 0)).flip(-1)
    return finish(torch.exp(logsigmoid(filled) + later), logits, params, visible, top)


class Sigmoid(Normalizer):
    """sigmoid(l + b), b = -ln n unless given, arXiv 2409.04431.

    Jacobian diag(w (1 - w)). Lipschitz constant 1/4. As n grows each weight falls like 1/n for lack of anything
    better (b = -ln n keeps the row sum about 1 for logits near 0); with a fixed b it does not change.
    """

    name = "sigmoid"
    meaning = "no competition between keys; high bias means long rows sum to more than 1, low bias to less"
    paper = "2409.04431"
    example = "sigmoid:bias=-4"
    options = (Option("bias", None, "added to the logits; none is -ln n", optional=True),)
    sums_to_one = False
    row_map = row_map("sigmoid", sigmoid_reference, "shaped.sigmoid")

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        # NaN stands for a bias that follows the row: parameters of a map are numbers.
        return self.row_map, logits.new_full((1,), math.nan if self.bias is None else self.bias)

    def _jacobian(self, logits: Tensor) -> Tensor:
        w = self._weights(logits)
        return torch.diag_embed(w * (1 - w))

    def _lipschitz(self, keys: int) -> float:
        return 0.25


class NormalizedReLU(Normalizer):
    """relu(l)^p / (sum relu(l)^p + eps), arXiv 2104.07012, 2309.08586.

    Jacobian diag u - w u^T, u = p relu(l)^(p-1) / (sum relu(l)^p + eps). Lipschitz constant infinite for
    eps = 0 (it explodes near l = 0); for eps > 0 `lipschitz` is an upper bound of the order eps^(-1/p). As n
    grows keys with negative logits change nothing, keys with positive ones dilute the row.
    """

    name = "relu"
    aliases = ("normalised-relu", "normalized-relu", "normalised-relu-p")
    meaning = "sparse without exp; high power means the largest logits take more, a row below 0 gets nothing"
    paper = "2104.07012, 2309.08586"
    example = "relu:power=2"
    options = (
        Option("power", 1.0, "exponent p", low=1, closed="low"),
        Option("eps", 1e-6, "floor of the sum", low=0, closed="low"),
    )
    usual = (1, 2, 3)
    power: float
    eps: float
    sums_to_one = False
    row_map = row_map("relu", relu_reference, "shaped.relu")

    def _jacobian(self, logits: Tensor) -> Tensor:
        (visible, top), w = visible_and_top(logits), self._weights(logits)
        unit = top.clamp(min=1e-30)  # without a logit above 0, any divisor will do
        positive = visible & (logits > 0)
        base = torch.where(positive, logits / unit, 1.0)
        floor = self.eps / unit**self.power if self.eps > 0 else 0.0
        total = torch.where(positive, base**self.power, 0.0).sum(-1, keepdim=True) + floor
        slope = torch.where(positive, self.power * base ** (self.power - 1), 0.0)
        u = slope / (torch.where(total > 0, total, 1.0) * unit)
        return diagonal_minus_outer(u, w, u)

    def _lipschitz(self, keys: int) -> float:
        # ||J|| <= max u + ||w|| ||u||, max u <= peak, ||u|| <= peak n^(max(0, 2 - p) / 2p), ||w|| <= 1.
        if self.eps == 0:
            return math.inf if keys > 1 else 0.0
        p = self.power
        peak = math.pow((p - 1) * self.eps, (p - 1) / p) / self.eps if p > 1 else 1 / self.eps
        return peak * (1 + math.pow(keys, max(0.0, 2 - p) / (2 * p)))


class Softpick(Normalizer):
    """relu(e^l - 1) / (sum |e^l - 1| + eps), arXiv 2504.20966.

    Jacobian diag u - w v^T, u = 1[l > 0] e^l / total, v = sign(l) e^l / total. Lipschitz constant infinite for
    eps = 0 (it explodes as the row nears 0); for eps > 0 `lipschitz` is an upper bound of the order sqrt(n)/eps.
    As n grows every key below 0 still adds to the total, so the row sum falls.
    """

    name = "softpick"
    meaning = "no sink, exact zeros; high row sum means positive logits rule, a row below 0 gets nothing"
    paper = "2504.20966"
    example = "softpick:eps=1e-06"
    options = (Option("eps", 1e-6, "floor of the sum", low=0, closed="low"),)
    sums_to_one = False
    row_map = row_map("softpick", softpick_reference, "shaped.softpick")

    def _jacobian(self, logits: Tensor) -> Tensor:
        (visible, top), w = visible_and_top(logits), self._weights(logits)
        size, unit = _expm1_scaled(logits, visible, top)
        total = size.abs().sum(-1, keepdim=True) + self.eps * unit
        growth = torch.where(visible, size + unit, 0.0) / torch.where(total > 0, total, 1.0)
        return diagonal_minus_outer(torch.where(logits > 0, growth, 0.0), w, torch.sign(size) * growth)

    def _lipschitz(self, keys: int) -> float:
        # ||J|| <= max u + ||w|| ||v||, u_i <= 1 + 1/eps, ||v|| <= 1 + sqrt(n)/eps, ||w|| <= 1.
        return 2 + (1 + math.sqrt(keys)) / self.eps if self.eps > 0 else math.inf


class StickBreaking(Normalizer):
    """beta_i prod_{later k} (1 - beta_k), beta = sigmoid(l), arXiv 2410.17980. The order of the keys matters, the
    last visible key being the nearest to the query; meant for causal attention.

    Jacobian w_i (1 - beta_i) on the diagonal, -w_i beta_k for k > i, 0 below. `lipschitz` is the upper bound
    sqrt(1/(2e)) = 0.429 (column sums are at most 1/2, row sums at most 1/e). As n grows far keys share what is
    left of the stick: near keys are not diluted by them.
    """

    name = "stick-breaking"
    meaning = "near keys first; a high logit ends the row there, low logits pass the stick on to farther keys"
    paper = "2410.17980"
    sums_to_one = False
    needs_order = True
    row_map = row_map("stick-breaking", stick_breaking_reference, "shaped.stick_breaking")

    def _jacobian(self, logits: Tensor) -> Tensor:
        w, gate = self._weights(logits), torch.sigmoid(logits)
        later = torch.triu(-w.unsqueeze(-1) * gate.unsqueeze(-2), diagonal=1)
        return later + torch.diag_embed(w * torch.sigmoid(-logits))

    def _lipschitz(self, keys: int) -> float:
        return math.sqrt(1 / (2 * math.e)) if keys > 1 else 0.25
