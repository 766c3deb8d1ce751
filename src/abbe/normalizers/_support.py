"""Maps that give exact zeros, as a support per row: the keys that have a weight, and nothing about the others.

What is special: the maps here need only a few keys of a row to find its weights, and only the support to differentiate
them. Who calls them (`abbe.attention`) makes the logits block by block, and never keeps a full row.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from .._kernels.switch import load, usable_for
from .._kernels.threads import over_rows
from . import _registry
from ._base import Normalizer
from ._dispatch import _MAPS, RowMap, row_weights
from ._entmax import ENTMAX, ENTMAX15, SPARSEMAX, Entmax, Sparsemax
from ._scaled import Scaled
from ._selection import THRESHOLD, TOPK, TOPP, Threshold, TopK, TopP

# The kernel of each map, its module, and the kind of its Jacobian (`_kernels.support`).
_KERNELS: dict[str, tuple[str, str, int]] = {
    SPARSEMAX.name: ("support", "sparsemax_support", 0),
    ENTMAX15.name: ("support", "entmax15_support", 1),
    ENTMAX.name: ("support", "entmax_support", 2),
    TOPK.name: ("support_selection", "topk_support", 3),
    TOPP.name: ("support_selection", "topp_support", 3),
    THRESHOLD.name: ("support_selection", "threshold_support", 3),
}
_CLASSES = (Sparsemax, Entmax)
_SELECTIONS = (TopK, TopP, Threshold)


def support_map(normalizer: Normalizer, like: Tensor, with_sink: bool) -> tuple[RowMap, Tensor] | None:
    """The map and its parameters (..., P), which broadcast over (heads, queries); None where there is no such map."""
    if not usable_for(like) or not _is_known(normalizer):
        return None
    if with_sink and isinstance(normalizer, _SELECTIONS):  # of equal logits the sink's comes first, here it is last
        return None
    heads = like.shape[-3]
    which, params = normalizer._map(like.new_zeros(1).expand(heads, 1, 1))
    return (which, params) if which.name in _KERNELS else None


def _is_known(normalizer: Normalizer) -> bool:
    """Whether its parameters do not depend on the logits, and nobody listens to its calls."""
    if type(normalizer) not in _registry.CLASSES or normalizer._forward_hooks or normalizer._forward_pre_hooks:
        return False
    if isinstance(normalizer, Scaled):
        return normalizer.is_one_map and _is_known(normalizer.of)
    return isinstance(normalizer, (*_CLASSES, *_SELECTIONS))


def weights_of_map(name: str, logits: Tensor, params: Tensor) -> Tensor:
    """The weights of full rows."""
    return row_weights(_MAPS[name], logits, params)


def find_support(
    name: str, scores: Tensor, params: Tensor, sink: Tensor, shape: Tensor, places: Tensor, counts: Tensor,
    sink_weights: Tensor,
) -> None:  # fmt: skip
    """Replace the logits of every row by the weights of its support: see `_kernels.support`."""
    module, kernel, _ = _KERNELS[name]
    over_rows(_load(module, kernel), len(scores), scores, params, sink, shape, places, counts, sink_weights)


def differentiate_support(
    name: str, grad: Tensor, weights: Tensor, starts: Tensor, params: Tensor, sink_weights: Tensor, grad_sink: Tensor,
    grad_params: Tensor,
) -> None:  # fmt: skip
    """Replace the gradient to the weights of a support by that to its logits."""
    kind = torch.tensor([_KERNELS[name][2]])
    rest = params, kind, sink_weights, grad_sink, grad_params
    over_rows(_load("support", "support_gradient"), len(starts) - 1, grad, weights, starts, *rest)


@cache
def _load(module: str, kernel: str) -> Any:
    return load(f"{__package__}._kernels.{module}", kernel)
