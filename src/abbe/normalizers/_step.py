"""Attention of one query to all keys in one call, for the steps of a generation, where calls cost more than sums.

What is special: the logits never exist as a tensor, so this is only for normalizers that are one map whose parameters
depend on nothing but the number of keys. The caller has another path for all others.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .._kernels.switch import KernelsBrokenError, load, loading, usable_for
from .._kernels.threads import over_rows
from . import _registry
from ._base import Normalizer
from ._entmax import Entmax, Sparsemax
from ._row_map import RowMap, fused, params_of_rows


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
    if torch.compiler.is_compiling() or not (_is_known_by_shape(normalizer) and _are_plain(query, key, value)):
        return None
    batch, heads, _, _ = query.shape
    no_logits = _no_logits(batch, heads, key.shape[2])
    if not fused(no_logits):
        return None
    which, params = _map_of(normalizer, no_logits)
    if which.module is None:
        return None
    output = query.new_empty(batch, 1, heads, value.shape[3])
    # The keys come first: the size of the first tensor decides how rows are split over threads.
    try:
        over_rows(_kernel(which), batch * heads, key, query.contiguous(), value, params, _scale(scale), output)
    except KernelsBrokenError:
        return None
    return output


def _is_known_by_shape(normalizer: Normalizer) -> bool:
    """Whether `_map` reads only the shape of the logits, and the normalizer has no hooks.

    All one-map normalizers of this package qualify (the map itself reads the row); a class from elsewhere may not.
    """
    hooks = normalizer._forward_hooks or normalizer._forward_pre_hooks
    return type(normalizer) in _registry.CLASSES and normalizer.is_one_map and not hooks


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
        return load(f"{__package__}._kernels.step", "step")(which.kernel(which.forward))


@lru_cache(maxsize=64)
def _scale(scale: float) -> Tensor:
    return torch.tensor([scale], dtype=torch.float32, device="cpu")
