"""Stick-breaking attention: later keys take their share of the stick first."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from ._base import Normalizer
from ._row_map import RowMap, row_map
from ._rows import finish, visible_and_top


def stick_breaking_reference(logits: Tensor, params: Tensor) -> Tensor:
    """beta_i prod_{k > i} (1 - beta_k), beta = sigmoid(l), in logarithms."""
    visible, top = visible_and_top(logits)
    shown = torch.where(visible, logits, 0.0)
    # A product over thousands of keys would underflow, and its gradient would be 0/0.
    rest = torch.where(visible, logsigmoid(-shown), 0.0)
    later = pad(rest.flip(-1).cumsum(-1)[..., :-1], (1, 0)).flip(-1)
    return finish(torch.exp(logsigmoid(shown) + later), logits, params, visible, top)


STICK_BREAKING = row_map(
    "stick-breaking", stick_breaking_reference, "gates", "stick_breaking_forward", "stick_breaking_backward"
)


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
    example = "stick-breaking"
    sums_to_one = False
    needs_order = True

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        return STICK_BREAKING, logits.new_zeros(1)

    def _jacobian(self, logits: Tensor) -> Tensor:
        w, gate = self._weights(logits), torch.sigmoid(logits)
        later = torch.triu(-w.unsqueeze(-1) * gate.unsqueeze(-2), diagonal=1)
        return later + torch.diag_embed(w * torch.sigmoid(-logits))

    def _lipschitz(self, keys: int) -> float:
        return math.sqrt(1 / (2 * math.e)) if keys > 1 else 0.25
