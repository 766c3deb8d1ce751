"""Any normalizer at a different temperature, or beside a sink."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ._adaptive import AdaptiveTemperature, NormSoftmax
from ._base import Normalizer
from ._entmax import AdaptiveScalableEntmax, Entmax, Sparsemax
from ._hybrid import Combination, Hybrid
from ._options import Option, PerHead, heads_option, learn_option
from ._row_map import (
    NEG_INF,
    RowMap,
    below_top,
    finish,
    lowest,
    row_map,
    softmax_jacobian,
    visible_and_top,
    visible_keys,
)
from ._selection import Threshold, TopK, TopP
from ._shaped import ClippedSoftmax, ElasticSoftmax
from ._softmax import LearnedTemperature, LogNScaling, ScalableSoftmax, Softmax

# The first parameter of their map is a factor of the logits, and no parameter depends on the size of the logits.
_WITH_FACTOR = (Softmax, LearnedTemperature, ScalableSoftmax, LogNScaling, Sparsemax, Entmax, AdaptiveScalableEntmax)
# Adding a constant to all logits changes nothing.
_LEVEL_FREE = (*_WITH_FACTOR, AdaptiveTemperature, NormSoftmax, TopK, TopP, Threshold, ClippedSoftmax, ElasticSoftmax)


class Scaled(Combination):
    """A(exp(t) l) for any normalizer A, t within (-ln 100, ln 100), fixed or learned per head.

    Jacobian e^t times that of A at exp(t) l. Lipschitz constant e^t times that of A, with the largest t; an upper bound
    if that of A is one, or if both differ between heads. As n grows it behaves as A does: t does not depend on n.
    Where A depends on the level of its logits, a product beyond the largest number counts as that number.
    """

    name = "scaled"
    meaning = "another normalizer at its own temperature; high t means sharp weights, low t means flat ones"
    paper = "2111.09883 (for softmax)"
    example = "scaled:of=topk:k=32,t=0.5"
    options = (
        Option("of", "softmax", "the normalizer", "normalizer", shown=True),
        Option("t", 0.0, "log of the scale", low=-math.log(100), high=math.log(100), shown=True),
        learn_option(),
        heads_option(),
    )
    learnable = ("t",)
    of: Normalizer
    t: PerHead

    @property
    def is_one_map(self) -> bool:
        return isinstance(self.of, (*_WITH_FACTOR, LearnedSink)) or (isinstance(self.of, Scaled) and self.of.is_one_map)

    def _scale(self, logits: Tensor) -> Tensor:
        return torch.exp(self._value("t", logits))

    def _scaled(self, logits: Tensor) -> Tensor:
        """The logits for A, relative to their top if A allows it: a product of large numbers would be rounded.

        -inf stays -inf, and adds no 0 * inf to the gradient of the scale; a finite logit stays finite.
        """
        level = _is_level_free(self.of)
        visible, top = visible_and_top(logits) if level else (visible_keys(logits), torch.zeros_like(logits[..., :1]))
        z = torch.where(visible, logits - top, 0.0)
        # Not `clamp`, which would hide NaN and +inf from the gradient.
        z = torch.where(torch.isneginf(z) & torch.isfinite(top), lowest(logits), z)
        scaled = self._scale(logits) * z
        bounded = torch.where(torch.isfinite(z), scaled.clamp(lowest(logits), -lowest(logits)), scaled)
        return torch.where(visible, bounded, NEG_INF)

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        if not self.is_one_map:
            raise TypeError(f"{self.of} has no factor of the logits: scale the logits instead")
        which, params = self.of._map(logits)
        scale = self._scale(logits)
        factor, *rest = torch.broadcast_tensors(scale, *params.split(1, -1))[1:]  # type: ignore[no-untyped-call]
        return which, torch.cat([scale * factor, *rest], -1)

    def _weights(self, logits: Tensor) -> Tensor:
        if self.is_one_map:
            return super()._weights(logits)
        return self.of._weights(self._scaled(logits))

    def _jacobian(self, logits: Tensor) -> Tensor:
        return self._scale(logits).unsqueeze(-1) * self.of._jacobian(self._scaled(logits))

    def _lipschitz(self, keys: int) -> float:
        return math.exp(self._largest("t")) * self.of._lipschitz(keys)


def _is_level_free(normalizer: Normalizer) -> bool:
    if isinstance(normalizer, Hybrid):
        return _is_level_free(normalizer.a) and _is_level_free(normalizer.b)
    return _is_level_free(normalizer.of) if isinstance(normalizer, Scaled) else isinstance(normalizer, _LEVEL_FREE)


def sink_reference(logits: Tensor, params: Tensor) -> Tensor:
    """softmax([scale * logits, sink]) without the last, params (scale, sink)."""
    scale, sink = params[..., 0:1], params[..., 1:2]
    offset, visible, top = below_top(logits)
    scores = torch.where(visible, scale * offset, NEG_INF)
    # Relative to the top of the keys, as they are: no number is large, unless the sink itself is.
    extra = torch.broadcast_to((sink - scale * top).clamp(max=-lowest(logits)), top.shape)
    return finish(torch.softmax(torch.cat([scores, extra], -1), -1)[..., :-1], logits, params, visible, top)


SINK = row_map("sink", sink_reference, "softmax", "sink_forward", "sink_backward")


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
    options: ClassVar[tuple[Option, ...]] = (
        Option("b", 0.0, "logit of the sink", shown=True),
        learn_option(),
        heads_option(),
    )
    usual: ClassVar[tuple[float, ...]] = (0, 1, 2, 3, 4)
    learnable: ClassVar[tuple[str, ...]] = ("b",)
    b: PerHead
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
    example = "softmax1"
    options = ()
    usual = ()
    learnable = ()

    def _value(self, name: str, logits: Tensor) -> Tensor:
        return logits.new_zeros(1)
