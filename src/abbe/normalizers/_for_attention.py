"""Maps for attention: the support of rows with exact zeros, and one query's attention in one call.

A support holds the keys with a nonzero weight, and nothing about the others: maps with exact zeros need only a few keys
of a row to find its weights, and only the support to differentiate them. The caller (`abbe.attention`) computes the
logits block by block, and never keeps a full row.

In a step of a generation the logits never exist as a tensor, because calls cost more than sums there. This is only for
normalizers that are one map whose parameters depend on nothing but the number of keys; the caller has another path for
all others.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from .._kernels.calls import KernelsBrokenError, loading, over_rows, usable_for
from . import _registry
from ._base import Normalizer
from ._entmax import Entmax, Sparsemax
from ._row_map import MAPS, RowMap, fused, kernel_named, params_of_rows, row_weights
from ._softmax import Threshold, TopK, TopP

__all__ = ["differentiate_support", "find_support", "step_attention", "support_map", "weights_of_map"]

# The kind of the Jacobian of each map with a support kernel (`_kernels.support`), which is named after the map.
_KINDS = {"sparsemax": 0, "entmax15": 1, "entmax": 2, "topk": 3, "topp": 3, "threshold": 3}
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
    return (which, params) if which.name in _KINDS else None


def _is_known(normalizer: Normalizer) -> bool:
    """Whether its parameters do not depend on the logits, and it has no hooks."""
    if not _is_ours(normalizer):
        return False
    if isinstance(normalizer, _registry.Scaled):
        return normalizer.is_one_map and _is_known(normalizer.of)
    return isinstance(normalizer, (Sparsemax, Entmax, *_SELECTIONS))


def _is_ours(normalizer: Normalizer) -> bool:
    """A class of this package, without hooks: its map is all that it does."""
    hooks = normalizer._forward_hooks or normalizer._forward_pre_hooks
    return type(normalizer) in _registry.CLASSES and not hooks


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
    arrays = scores, params, sink, shape, places, counts, starts, sink_weights, query, packed
    over_rows(_load(f"{name}_support"), len(scores), *arrays, shares=max(1, len(scores) // SHARE_ROWS))


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
    kind = torch.tensor([_KINDS[name]])
    arrays = grad, weights, starts, params, kind, sink_weights, grad_sink, grad_params
    over_rows(_load("support_gradient"), len(starts) - 1, *arrays)


@cache
def _load(kernel: str) -> Any:
    return kernel_named("support", kernel)


def step_attention(normalizer: Normalizer, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor | None:
    """Attention of one query to all keys in one call, or None if that is not possible. Without gradients.

    Several query heads may share one head of keys and values. Swapped models call it in a generation.

    Args:
        normalizer: one that is a single map of a row.
        query: (batch, heads, 1, width), float32.
        key: (batch, key heads, keys, width).
        value: (batch, key heads, keys, value width).
        scale: of query.key, > 0.

    Returns:
        (batch, 1, heads, value width), or None.

    Examples:
        >>> query, key, value = torch.randn(1, 8, 1, 64), torch.randn(1, 2, 16, 64), torch.randn(1, 2, 16, 32)
        >>> abbe.normalizers.step_attention(abbe.normalizer("sparsemax"), query, key, value, 0.125) is None  # too few
        True
    """
    # `_map` reads only the shape of the logits in every one-map normalizer of this package; elsewhere it may not.
    known = _is_ours(normalizer) and normalizer.is_one_map
    if torch.compiler.is_compiling() or not (known and _are_plain(query, key, value)):
        return None
    batch, heads, _, _ = query.shape
    no_logits = _no_logits(batch, heads, key.shape[2])
    if not fused(no_logits):
        return None
    which, params = _map_of(normalizer, no_logits)
    if not which.forward:
        return None
    output = query.new_empty(batch, 1, heads, value.shape[3])
    # The keys come first: the size of the first tensor decides how rows are split over threads.
    try:
        over_rows(_kernel(which), batch * heads, key, query.contiguous(), value, params, _scale(scale), output)
    except KernelsBrokenError:
        return None
    return output


def _are_plain(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether a kernel can read them by their shapes alone; a query is small and can be copied."""
    if not (query.dtype == key.dtype == value.dtype == torch.float32 and usable_for(query, key, value)):
        return False
    batch, heads, _, width = query.shape
    of_batch, shared, keys, of_width = key.shape
    fits = of_batch == batch and of_width == width and value.shape[:3] == (batch, shared, keys)
    return fits and heads % shared == 0 and key.is_contiguous() and value.is_contiguous()


def _map_of(normalizer: Normalizer, no_logits: Tensor) -> tuple[RowMap, Tensor]:
    """The map, and its parameters: per row or shared by all."""
    if type(normalizer) in _ALWAYS_THE_SAME and not normalizer.learned._modules:
        return _fixed_map(type(normalizer), normalizer._given.get("alpha"))
    normalizer._validate(no_logits, None)
    which, params = normalizer._map(no_logits)
    return which, params_of_rows(params, no_logits)


# Without learning, their parameters are the same in every step and shape: making them takes as long as a kernel.
_ALWAYS_THE_SAME = (Sparsemax, Entmax)


@lru_cache(maxsize=64)
def _fixed_map(kind: type[Normalizer], alpha: float | None) -> tuple[RowMap, Tensor]:
    no_logits = _no_logits(1, 1, 1)
    with torch.inference_mode(False):  # its tensors could not be used outside of it
        which, params = (kind() if alpha is None else kind(alpha=alpha))._map(no_logits)
        return which, params_of_rows(params, no_logits)


@lru_cache(maxsize=8)  # all layers of a model need the same
def _no_logits(batch: int, heads: int, keys: int) -> Tensor:
    """Logits of this shape with all keys visible, without memory for the numbers."""
    return torch.zeros(1, dtype=torch.float32, device="cpu").expand(batch, heads, 1, keys)


@lru_cache
def _kernel(which: RowMap) -> Any:
    with loading():
        return kernel_named("rows", "step")(which.kernel("forward"))


@lru_cache(maxsize=64)
def _scale(scale: float) -> Tensor:
    return torch.tensor([scale], dtype=torch.float32, device="cpu")
