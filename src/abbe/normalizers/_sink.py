"""Softmax with one extra key that carries no value: a head may attend to nothing."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ._base import Normalizer
from ._options import Option, PerHead, heads_option, learn_option
from ._row_map import RowMap, row_map
from ._rows import NEG_INF, below_top, finish, lowest, softmax_jacobian


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
