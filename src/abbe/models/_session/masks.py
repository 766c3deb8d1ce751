"""Which keys a query may see: when a tapped model needs a mask, and what a missing mask means.

What is special: a plain causal model gets no L x L mask, exactly as under SDPA. transformers leaves the mask out if
SDPA's flag says the same, and that flag is read from the module. A model that was loaded to compute eagerly always had
a causal mask, so for it the flag is trusted only if all its modules agree. Its masks are floating, and parts outside of
attention may read them (the routers of NLLB-MoE take what is not 0 for padding), so they stay floating for all but
abbe's functions, which find the same mask as bool on the tensor itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

SEEN = "abbe_seen"  # of a floating mask that abbe made: the same as bool


def causal_flag(module: nn.Module) -> bool | None:
    """Whether a module declares that its queries see no later keys; None if it declares nothing."""
    return bool(module.is_causal) if hasattr(module, "is_causal") else None


def is_causal(module: nn.Module) -> bool:
    """Whether an attention module has its keys in causal order: by its flag, its config and its kind."""
    setting = getattr(getattr(module, "config", None), "is_causal", None)
    cross = getattr(module, "is_cross_attention", False)
    return causal_flag(module) is not False and setting is not False and not cross


def is_lower_triangle(mask: Tensor) -> bool:
    """Whether a mask is causal and nothing else, for which attention() does half the work."""
    queries, keys = mask.shape[-2:]
    if mask.dtype != torch.bool or queries != keys or queries == 1:
        return False
    return bool((mask == torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()).all())


class MaskPolicy:
    """The mask function of one tapped model, and the rule for calls that have no mask.

    `is_eager` says of a config whether the model would compute eagerly by it.
    """

    def __init__(
        self, implementations: set[str | None], modules: Iterable[nn.Module], is_eager: Callable[[Any], bool]
    ) -> None:
        flags = {causal_flag(module) is not False for module in modules}
        self._as_sdpa = implementations == {"sdpa"}
        self._skip_causal = self._as_sdpa or flags == {True}
        # Unless causal masks are skipped, a missing mask shows all keys, as it does eagerly.
        self._skip_full = self._as_sdpa or False in flags
        self._is_eager = is_eager

    def make_mask(
        self, *, allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False,
        dtype: torch.dtype = torch.float32, config: Any = None, **options: Any,
    ) -> Tensor | None:  # fmt: skip
        """The mask that the model would have had, with the signature that transformers expects."""
        from transformers.masking_utils import sdpa_mask

        seen: Tensor | None = sdpa_mask(
            allow_is_causal_skip=allow_is_causal_skip and self._skip_causal,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip and self._skip_full,
            **options,
        )
        if seen is None or not self._is_eager(config):
            return seen
        mask = torch.where(seen, torch.zeros((), dtype=dtype, device=seen.device), torch.finfo(dtype).min)
        setattr(mask, SEEN, seen)
        return mask

    def is_causal(self, module: nn.Module, requested: bool | None, queries: int) -> bool:
        """Whether a call without a mask hides later keys; one query alone sees all keys."""
        if queries == 1:
            return False
        if not self._as_sdpa:
            return self._skip_causal
        return causal_flag(module) is not False if requested is None else requested
