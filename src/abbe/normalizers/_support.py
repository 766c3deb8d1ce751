"""Maps with exact zeros, as a support per row: the keys with a nonzero weight, and nothing about the others.

What is special: these maps need only a few keys of a row to find its weights, and only the support to differentiate
them. The caller (`abbe.attention`) computes the logits block by block, and never keeps a full row.
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
from ._entmax import ENTMAX, ENTMAX15, SPARSEMAX, Entmax, Sparsemax
from ._row_map import MAPS, RowMap, row_weights
from ._scaled import Scaled
from ._selection import THRESHOLD, TOPK, TOPP, Threshold, TopK, TopP

# The kernel of each map, its module, and the kind of its Jacobian (`_kernels.support`).
_KERNELS: dict[str, tuple[str, str, int]] = {
    SPARSEMAX.name: ("support", "sparsemax_support", 0),
    ENTMAX15.name: ("support", "entmax15_support", 1),
    ENTMAX.name: ("support", "entmax_support", 2),
    TOPK.name: ("support", "topk_support", 3),
    TOPP.name: ("support", "topp_support", 3),
    THRESHOLD.name: ("support", "threshold_support", 3),
}
SHARE_ROWS = 64  # per share that a thread takes
_SELECTIONS = (TopK, TopP, Threshold)


def support_map(normalizer: Normalizer, like: Tensor, with_sink: bool) -> tuple[RowMap, Tensor] | None:
    """The map of a normalizer with exact zeros, for kernels that work on its support alone.

    Args:
        normalizer: sparsemax, entmax, top-k, top-p or threshold, scaled or not.
        like: a tensor (..., heads, queries, width) on the device in question.
        with_sink: whether a learned sink takes part.

    Returns:
        The map and its parameters (..., P), which broadcast over (heads, queries); None if there is no such map.

    Examples:
        >>> like = torch.zeros(8, 16, 64)
        >>> abbe.normalizers.support_map(abbe.normalizer("sparsemax"), like, with_sink=False)[0].name
        'sparsemax'
        >>> abbe.normalizers.support_map(abbe.normalizer("softmax"), like, with_sink=False) is None
        True
    """
    if not usable_for(like) or not _is_known(normalizer):
        return None
    if with_sink and isinstance(normalizer, _SELECTIONS):  # the sink should win ties, but these kernels have it last
        return None
    # In the precision of the kernels: bfloat16 would round k=257 to 256.
    which, params = normalizer._map(like.new_zeros(1, dtype=torch.float32).expand(like.shape[-3], 1, 1))
    return (which, params) if which.name in _KERNELS else None


def _is_known(normalizer: Normalizer) -> bool:
    """Whether its parameters do not depend on the logits, and it has no hooks."""
    if type(normalizer) not in _registry.CLASSES or normalizer._forward_hooks or normalizer._forward_pre_hooks:
        return False
    if isinstance(normalizer, Scaled):
        return normalizer.is_one_map and _is_known(normalizer.of)
    return isinstance(normalizer, (Sparsemax, Entmax, *_SELECTIONS))


def weights_of_map(name: str, logits: Tensor, params: Tensor) -> Tensor:
    """The weights of full rows, by the name of a map from `support_map`.

    Args:
        name: of the map.
        logits: (..., keys), float32 or float64.
        params: of the map, which broadcast over the rows.

    Returns:
        Weights of the same shape.

    Examples:
        >>> abbe.normalizers.weights_of_map("sparsemax", torch.tensor([[2.0, 0.0]]), torch.ones(1)).tolist()
        [[1.0, 0.0]]
    """
    return row_weights(MAPS[name], logits, params)


def find_support(
    name: str, scores: Tensor, params: Tensor, sink: Tensor, shape: Tensor, places: Tensor, counts: Tensor,
    starts: Tensor, sink_weights: Tensor, query: Tensor, packed: Tensor,
) -> None:  # fmt: skip
    """The support of every row, from its logits or its query: `_kernels.support` has the layout.

    Args:
        name: of the map.
        scores: logits (rows, width), which become weights; scratch of a few rows if they are computed from queries.
        params: of the map, (1 or rows, P).
        sink: one extra logit per head, or none.
        shape: which keys a row sees, whole numbers.
        places: becomes the keys of the weights.
        counts: becomes the number of weights per row, (rows,).
        starts: becomes where the weights of a row begin, (rows,).
        sink_weights: becomes the weight of the sink, (rows,).
        query: scaled queries to compute the logits from, or none.
        packed: the keys of these queries, in the order of the kernel, or none.
    """
    module, kernel, _ = _KERNELS[name]
    arrays = scores, params, sink, shape, places, counts, starts, sink_weights, query, packed
    over_rows(_load(module, kernel), len(scores), *arrays, shares=max(1, len(scores) // SHARE_ROWS))


def differentiate_support(
    name: str, grad: Tensor, weights: Tensor, starts: Tensor, params: Tensor, sink_weights: Tensor, grad_sink: Tensor,
    grad_params: Tensor,
) -> None:  # fmt: skip
    """Replace the gradient to the weights of a support with the gradient to its logits, in place.

    Args:
        name: of the map.
        grad: of all weights, one row after the other.
        weights: the same weights.
        starts: where each row starts, and the end, (rows + 1,).
        params: of the map, (1 or rows, P).
        sink_weights: weight of the sink, (rows,).
        grad_sink: gradient to the sink, in and out.
        grad_params: becomes the gradient to the parameters.
    """
    kind = torch.tensor([_KERNELS[name][2]])
    arrays = grad, weights, starts, params, kind, sink_weights, grad_sink, grad_params
    over_rows(_load("support", "support_gradient"), len(starts) - 1, *arrays)


@cache
def _load(module: str, kernel: str) -> Any:
    return load(f"{__package__}._kernels.{module}", kernel)
