"""Maps that gate each key by its own logit, and softmax that follows its row.

Gates: sigmoid, normalised ReLU^p, softpick, stick-breaking. Softmax: a pointwise map of its weights, or a temperature
from the entropy or the deviation of the row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from ._base import Normalizer
from ._options import PER_HEAD, Option
from ._row_map import RowMap, row_counts, row_map
from ._rows import below_top, diagonal_minus_outer, finish, masked_softmax, softmax_jacobian, visible_and_top


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
    """Ends of half the logits, as is all that is computed from them: the width of any finite row is finite."""
    filled = torch.where(visible, logits / 2, 0.0)
    low, high = filled.amin(-1, keepdim=True), filled.amax(-1, keepdim=True)
    return torch.where(low < 0, low, 0.0), torch.where(high > 0, high, 0.0)


def self_adjusted_reference(logits: Tensor, params: Tensor) -> Tensor:
    p, visible, top = plain_softmax(logits)
    low, high = _low_and_high(logits, visible)
    wide = high - low > _SMALLEST_WIDTH
    ratio = torch.where(wide, (torch.where(visible, logits / 2, 0.0) - low) / torch.where(wide, high - low, 1.0), 1.0)
    return finish(ratio * p, logits, params, visible, top)


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
    row_map = row_map("clipped", clipped_reference, "shaped.clipped")

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
    options = (Option("tau", -1.0, "offset in units of the flat weight 1/n", shown=True), *PER_HEAD)
    learnable = ("tau",)
    sums_to_one = False
    row_map = row_map("elastic", elastic_reference, "shaped.elastic")

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
    sums_to_one = False
    row_map = row_map("self-adjusted", self_adjusted_reference, "shaped.self_adjusted")
    continuous = False  # at a row of zeros

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
    row_map = row_map("adaptive-temperature", entropy_reference, "shaped.entropy")

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
    row_map = row_map("norm-softmax", deviation_reference, "shaped.deviation")
    continuous = False  # at a flat row

    def _jacobian(self, logits: Tensor) -> Tensor:
        half, visible, _ = _half_below_top(logits)
        n, sd, w = visible.sum(-1, keepdim=True).clamp(min=1), _deviation(half, visible), self._weights(logits)
        scale = _inverse(sd, self._value("gamma", logits))
        centred = torch.where(visible, half - (half / n).sum(-1, keepdim=True), 0.0)
        slope = torch.where((sd > _FLAT) & (sd < self.gamma), scale**3 * 2 / n, 0.0) * centred
        spread = w * (half - (w * half).sum(-1, keepdim=True)) * 2
        return diagonal_minus_outer(scale * w, scale * w, w) - spread.unsqueeze(-1) * slope.unsqueeze(-2)

    def _lipschitz(self, keys: int) -> float:
        return math.inf
