"""Softmax: at a fixed or learned temperature, at one that follows the row length, beside a sink, over selected keys.

Keys are selected by number (the k largest), by mass (the smallest set that has it), or by their share of the largest
weight.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from ._base import Normalizer
from ._options import HEADS, PER_HEAD, Option
from ._row_map import RowMap, row_counts, row_map
from ._rows import NEG_INF, below_top, diagonal_minus_outer, finish, lowest, masked_softmax, softmax_jacobian

__all__ = ["LogNScaling", "ScalableSoftmax", "Softmax", "Truncated"]


def softmax_reference(logits: Tensor, params: Tensor) -> Tensor:
    """softmax(scale * logits), params (scale,)."""
    z, visible, top = below_top(logits)
    return finish(masked_softmax(params * z, visible), logits, params, visible, top)


SOFTMAX = row_map("softmax", softmax_reference, "softmax.softmax")


class ScaledSoftmax(Normalizer):
    """softmax(c l) with one scale c per row. Jacobian c (diag w - w w^T), Lipschitz constant c/2."""

    @abstractmethod
    def _scale(self, logits: Tensor) -> Tensor: ...

    @abstractmethod
    def _largest_scale(self, keys: int) -> float: ...

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        return SOFTMAX, self._scale(logits)

    def _jacobian(self, logits: Tensor) -> Tensor:
        return softmax_jacobian(self._weights(logits), self._scale(logits))

    def _lipschitz(self, keys: int) -> float:
        return self._largest_scale(keys) / 2


class Softmax(ScaledSoftmax):
    """softmax(l / T), arXiv 1706.03762.

    Jacobian (diag w - w w^T)/T. Lipschitz constant 1/(2T), reached at two equal logits. As n grows at a fixed
    spread of logits every weight falls like 1/n: the weights disperse. A high temperature means flat weights, a low one
    that one key takes all.

    Args:
        given: `temperature`, T > 0, 1 by default.

    Examples:
        >>> abbe.normalizers.Softmax(temperature=0.5)
        Softmax('softmax:temperature=0.5')
    """

    name = "softmax"
    meaning = "the baseline; high temperature means flat weights, low means one key takes all"
    paper = "1706.03762"
    example = "softmax:temperature=0.5"
    options = (Option("temperature", 1.0, "divides the logits", low=0),)
    usual = (0.5, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2)
    temperature: float

    def _scale(self, logits: Tensor) -> Tensor:
        return logits.new_full((1,), 1 / self.temperature)

    def _largest_scale(self, keys: int) -> float:
        return 1 / self.temperature


class LearnedTemperature(ScaledSoftmax):
    """softmax(exp(t) l) with t learned per head and kept within (-ln 100, ln 100), arXiv 2111.09883.

    Jacobian e^t (diag w - w w^T). Lipschitz constant e^t/2, at most 50. As n grows the weights disperse like
    softmax: t does not depend on n.
    """

    name = "learned-temperature"
    meaning = "one scalar per head; high t means sharp weights, low t means flat ones"
    paper = "2111.09883"
    example = "learned-temperature:t=0.5,heads=12"
    options = (Option("t", 0.0, "log of the scale at the start", low=-math.log(100), high=math.log(100)), HEADS)
    learnable = ("t",)
    always_learns = True

    def _scale(self, logits: Tensor) -> Tensor:
        return torch.exp(self._value("t", logits))

    def _largest_scale(self, keys: int) -> float:
        return math.exp(self._largest("t"))


_FLOOR = Option("floor", 0.0, "the factor of the logits is never below it", low=0, closed="low")


def _at_least(factor: Tensor, floor: float) -> Tensor:
    return factor.clamp(min=floor) if floor else factor


class CountedSoftmax(ScaledSoftmax):
    """softmax(c(n) l), with a scale that depends on the number n of visible keys alone."""

    def _scale(self, logits: Tensor) -> Tensor:
        return self.scale_of_counts(row_counts(logits))

    @abstractmethod
    def scale_of_counts(self, counts: Tensor) -> Tensor:
        """The factor of the logits.

        Args:
            counts: visible keys of the rows, (..., 1).

        Returns:
            One factor per row, (..., 1).
        """


class ScalableSoftmax(CountedSoftmax):
    """softmax(max(s ln(n), floor) l), n the visible keys, s per head, arXiv 2501.19399; the paper has no floor.

    Jacobian that factor times (diag w - w w^T). Lipschitz constant half the factor. As n grows a key that leads by more
    than 1/s keeps its weight. A high s means that a small lead is enough at any length, a low one disperses.

    Args:
        given: `s` > 0, `floor` >= 0, `learn` and `heads`.

    Examples:
        >>> abbe.normalizers.ScalableSoftmax(s=0.5)
        ScalableSoftmax('ssmax:s=0.5')
    """

    name = "ssmax"
    aliases = ("scalable-softmax",)
    meaning = "sharpens as the row grows; high s means a small lead is enough at any length, low s disperses"
    paper = "2501.19399"
    example = "ssmax:s=0.5"
    options = (Option("s", 1.0, "a lead of 1/s wins at every length", low=0), _FLOOR, *PER_HEAD)
    usual = (0.1, 0.2, 0.3, 0.4, 0.5, 1, 2)
    learnable = ("s",)
    floor: float

    def scale_of_counts(self, counts: Tensor) -> Tensor:
        # A row without keys counts as one key: ln 0 times 0 would be NaN.
        return _at_least(self._value("s", counts) * counts.clamp(min=1).log(), self.floor)

    def _largest_scale(self, keys: int) -> float:
        return max(self._largest("s") * math.log(keys), self.floor)


class LogNScaling(CountedSoftmax):
    """softmax(max(1 + slope (ln n / ln trained - 1), floor) l), n the visible keys, arXiv 2202.12172; slope per head.

    The paper has slope 1 and no floor: the factor is ln n / ln trained. With floor=1 rows up to trained stay as they
    are and none is softened; with beyond=true they stay as they are at any slope, also one below 0, which softens.
    Jacobian and Lipschitz constant of softmax times that factor. As n grows beyond trained a slope of 1 keeps the
    entropy of a pre-trained head about where it was. A low trained length means sharper weights at every length.

    Args:
        given: `trained` >= 2, `floor` >= 0, `slope`, `beyond`, `learn` and `heads`.

    Examples:
        >>> abbe.normalizers.LogNScaling(trained=512)
        LogNScaling('logn:trained=512')
    """

    name = "logn"
    aliases = ("log-n-scaling", "log-n")
    meaning = "drop-in for a pre-trained model; low trained length means sharper weights at every length"
    paper = "2202.12172"
    options = (
        Option("trained", 1024, "keys per row in training", "count", 2, closed="low", shown=True),
        _FLOOR,
        Option("slope", 1.0, "how fast the factor of the logits grows with ln n; below 0 it falls"),
        Option("beyond", False, "rows of up to trained keys stay as they are", "flag"),
        *PER_HEAD,
    )
    usual = (128, 256, 512, 1024, 2048, 4096, 8192, 32768)
    learnable = ("slope",)
    floor: float

    def scale_of_counts(self, counts: Tensor) -> Tensor:
        ratio = counts.clamp(min=1).log() / math.log(self.trained)
        if not self.learned and self._given["slope"] == 1 and not self.beyond:
            return _at_least(ratio, self.floor)
        excess = ratio - 1
        if self.beyond:
            # By the count, since the ratio at `trained` itself may be rounded to a little more than 1.
            excess = torch.where(counts > self.trained, excess, 0.0)
        return (1 + self._value("slope", counts) * excess).clamp(min=self.floor)

    def _largest_scale(self, keys: int) -> float:
        # The factor is monotonic in n, so the largest is at one end; a row of one key has no derivative.
        return max(self._factor(slope, n) for slope in self._numbers("slope") for n in (2, keys))

    def _factor(self, slope: float, keys: int) -> float:
        excess = math.log(keys) / math.log(self.trained) - 1
        return max(1 + slope * (max(excess, 0.0) if self.beyond else excess), self.floor)


def sink_reference(logits: Tensor, params: Tensor) -> Tensor:
    """softmax([scale * logits, sink]) without the last, params (scale, sink)."""
    scale, sink = params[..., 0:1], params[..., 1:2]
    offset, visible, top = below_top(logits)
    scores = torch.where(visible, scale * offset, NEG_INF)
    # Relative to the top of the keys, as they are: no number is large, unless the sink itself is.
    extra = torch.broadcast_to((sink - scale * top).clamp(max=-lowest(logits)), top.shape)
    return finish(torch.softmax(torch.cat([scores, extra], -1), -1)[..., :-1], logits, params, visible, top)


SINK = row_map("sink", sink_reference, "softmax.sink")


class LearnedSink(Normalizer):
    """softmax([l, b]) without the last entry, b per head, as in gpt-oss, arXiv 2508.10925.

    Jacobian diag w - w w^T with weights that sum to less than 1. Lipschitz constant 1/2. As n grows the sink
    is crowded out: its share falls like e^b / n.
    """

    name = "sink"
    aliases = ("learned-sink",)
    meaning = "weights may sum to less than 1; high b means the head attends to nothing, low b is softmax"
    paper = "2508.10925"
    example = "sink:b=2"
    options: ClassVar[tuple[Option, ...]] = (Option("b", 0.0, "logit of the sink", shown=True), *PER_HEAD)
    usual: ClassVar[tuple[float, ...]] = (0, 1, 2, 3, 4)
    learnable: ClassVar[tuple[str, ...]] = ("b",)
    sums_to_one = False

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        sink = self._value("b", logits)
        return SINK, torch.cat([torch.ones_like(sink), sink], -1)

    def _jacobian(self, logits: Tensor) -> Tensor:
        return softmax_jacobian(self._weights(logits))

    def _lipschitz(self, keys: int) -> float:
        return 0.5 if keys > 1 else 0.25


class SoftmaxPlusOne(LearnedSink):
    """e^{l_i} / (1 + sum_j e^{l_j}), Miller 2023: a sink whose logit is 0.

    Jacobian diag w - w w^T. Lipschitz constant 1/2. As n grows the 1 is crowded out and it becomes softmax.
    """

    name = "softmax1"
    aliases = ("softmax-plus-one",)
    meaning = "may attend to nothing; high row sum means the logits are well above 0, low means far below"
    paper = "Miller 2023, Attention Is Off By One"
    options = ()
    usual = ()
    learnable = ()

    def _value(self, name: str, logits: Tensor) -> Tensor:
        return logits.new_zeros(1)


def _unsorted(kept: Tensor, order: Tensor) -> Tensor:
    """Bring a mask over the sorted keys back to their places."""
    return torch.zeros_like(kept).scatter(-1, order, kept)


def _k_largest(logits: Tensor, k: Tensor) -> Tensor:
    order = logits.detach().argsort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    return _unsorted(torch.broadcast_to(rank < k, logits.shape), order)


def topk_reference(logits: Tensor, params: Tensor) -> Tensor:
    """Softmax over the k largest, params (1, k); of equal logits the earlier keys are kept."""
    z, visible, top = below_top(logits)
    kept = visible & _k_largest(logits, params[..., 1:2])
    return finish(masked_softmax(z, kept), logits, params, visible, top)


def topk_kept_reference(logits: Tensor, params: Tensor) -> Tensor:
    """The full softmax weights of the k largest, params (1, k)."""
    z, visible, top = below_top(logits)
    weights = masked_softmax(z, visible)
    return finish(torch.where(_k_largest(logits, params[..., 1:2]), weights, 0.0), logits, params, visible, top)


def topp_reference(logits: Tensor, params: Tensor) -> Tensor:
    """Softmax over the smallest set with mass >= p, params (1, p); of equal logits the earlier keys are kept."""
    p = params[..., 1:2]
    z, visible, top = below_top(logits)
    # The choice of keys has no derivative; their weights below have one.
    weights = masked_softmax(z.detach(), visible)
    order = logits.detach().argsort(dim=-1, descending=True, stable=True)
    mass = weights.gather(-1, order).cumsum(-1)
    before = torch.cat([torch.zeros_like(mass[..., :1]), mass[..., :-1]], -1)
    # With p = 1 all are kept: the rounded mass of some may already equal the total.
    kept = visible & _unsorted((before < p * mass[..., -1:]) | (p >= 1), order)
    return finish(masked_softmax(z, kept), logits, params, visible, top)


def threshold_reference(logits: Tensor, params: Tensor) -> Tensor:
    """Softmax over the keys with weight >= rel * largest, params (1, rel)."""
    z, visible, top = below_top(logits)
    return finish(masked_softmax(z, visible & (z.detach().exp() >= params[..., 1:2])), logits, params, visible, top)


TOPK = row_map("topk", topk_reference, "selection.topk", "softmax.softmax_backward")
TOPK_KEPT = row_map("topk-kept", topk_kept_reference, "selection.topk_kept", "shaped.kept_backward")
TOPP = row_map("topp", topp_reference, "selection.topp", "softmax.softmax_backward")
THRESHOLD = row_map("threshold", threshold_reference, "selection.threshold", "softmax.softmax_backward")


class _Selection(Normalizer):
    """Softmax on a set that is constant almost everywhere: there its Jacobian is that of softmax."""

    continuous = False

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        return self.row_map, logits.new_tensor([1.0, self._given[self.options[0].name]])

    def _jacobian(self, logits: Tensor) -> Tensor:
        return softmax_jacobian(self._weights(logits))

    def _lipschitz(self, keys: int) -> float:
        return 0.5 if keys > 1 else 0.0


class TopK(_Selection):
    """Softmax over the k largest logits (earlier keys win ties); ``renormalize=false`` keeps the full softmax
    weights of these k instead, arXiv 1912.11637.

    Jacobian diag w - w w^T (w of the selected), or D (diag p - p p^T) without renormalisation. Spectral norm at
    most 1/2 almost everywhere, but discontinuous where the k-th and the next logit meet. As n grows the support
    stays k and the entropy at most ln k.
    """

    name = "topk"
    aliases = ("top-k", "top-k-softmax")
    meaning = "a hard limit on the keys; high k is softmax, low k means few keys regardless of the row"
    paper = "1912.11637"
    options = (
        Option("k", 32, "keys to keep", "count", 1, closed="low", shown=True),
        Option("renormalize", True, "softmax over the kept keys alone", "flag"),
    )
    usual = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

    def __init__(self, **given: object) -> None:
        super().__init__(**given)
        self.row_map = TOPK if self.renormalize else TOPK_KEPT
        self.sums_to_one = self.renormalize  # type: ignore[misc]

    def _jacobian(self, logits: Tensor) -> Tensor:
        if self.renormalize:
            return super()._jacobian(logits)
        z, visible, _ = below_top(logits)
        w = self._weights(logits)
        return diagonal_minus_outer(w, w, masked_softmax(z, visible))

    def _lipschitz(self, keys: int) -> float:
        return 0.5 if keys > 1 and (self.k > 1 or not self.renormalize) else 0.0


class TopP(_Selection):
    """Softmax over the smallest set whose softmax mass is at least p (earlier keys win ties), arXiv 2502.02770.

    Jacobian diag w - w w^T. Spectral norm at most 1/2 almost everywhere, discontinuous where the set changes. As
    n grows the set grows with the flatness of the row: it adapts, and disperses with softmax.
    """

    name = "topp"
    aliases = ("top-p", "top-p-softmax")
    meaning = "keeps the bulk of the mass; high p means more keys (1 is softmax), low p means few"
    paper = "2502.02770"
    options = (Option("p", 0.9, "mass to keep", low=0, high=1, closed="high", shown=True),)
    usual = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
    row_map = TOPP


class Threshold(_Selection):
    """Softmax over the keys whose weight is at least rel times the largest, arXiv 2503.23174.

    Jacobian diag w - w w^T. Spectral norm at most 1/2 almost everywhere, discontinuous where a key crosses the
    threshold. As n grows only keys within -ln(rel) of the top logit count, however many others there are.
    """

    name = "threshold"
    aliases = ("threshold-hybrid",)
    meaning = "drops what is far below the best; high rel means few keys, rel near 0 is softmax"
    paper = "2503.23174"
    options = (Option("rel", 0.1, "fraction of the largest weight", low=0, high=1, closed="both", shown=True),)
    usual = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    row_map = THRESHOLD


class Truncated(Normalizer):
    """The N largest weights of another normalizer, by default scaled so that a row keeps its sum. For measurements.

    With softmax it is top-k. A learned sink counts as a key, and of equal weights any may be kept. A small N drops most
    of the row, a large one changes nothing.

    Args:
        inner: the normalizer whose weights are truncated.
        keep: N >= 1.
        renormalize: scale them; else they stay as they are.

    Examples:
        >>> top_two = abbe.normalizers.Truncated(abbe.normalizer("softmax"), 2)
        >>> [round(w, 3) for w in top_two(torch.tensor([2.0, 1.0, 0.0, -1.0])).tolist()]
        [0.731, 0.269, 0.0, 0.0]
    """

    name = "truncated"
    continuous = False

    def __init__(self, inner: Normalizer, keep: int, renormalize: bool = True) -> None:
        super().__init__()
        self.inner, self.keep, self.renormalize = inner, keep, renormalize

    def _weights(self, logits: Tensor) -> Tensor:
        weights = self.inner._weights(logits)
        if self.keep >= weights.shape[-1]:
            return weights
        top = weights.topk(self.keep, -1)
        if not self.renormalize:
            return torch.zeros_like(weights).scatter_(-1, top.indices, top.values)
        kept, total = top.values.sum(-1, keepdim=True), weights.sum(-1, keepdim=True)
        scale = torch.where(kept > 0, total / torch.where(kept > 0, kept, 1.0), 1.0)
        return torch.zeros_like(weights).scatter_(-1, top.indices, top.values * scale)

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        raise TypeError("truncated weights are no row map")

    def _jacobian(self, logits: Tensor) -> Tensor:
        raise TypeError("truncated weights are for measurements: they have no Jacobian")

    def _lipschitz(self, keys: int) -> float:
        raise TypeError("truncated weights are for measurements: they have no Lipschitz constant")
