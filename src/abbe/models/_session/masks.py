"""When a tapped model needs a mask, and what the absence of one means.

What is special: a plain causal model gets no L x L mask, exactly as under SDPA. transformers leaves the mask out where
SDPA's own flag says the same, and that flag is read from the module. A model that was loaded to compute eagerly
always had a mask, so for it the flag is trusted only where all its modules agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


class MaskPolicy:
    """The mask function of one tapped model, and the rule for calls that have no mask."""

    def __init__(self, implementations: set[str | None], modules: Iterable[nn.Module]) -> None:
        flags = {bool(getattr(module, "is_causal", True)) for module in modules}
        self._as_sdpa = implementations == {"sdpa"}
        self._skip_causal = self._as_sdpa or flags == {True}
        self._skip_full = self._as_sdpa or flags == {False}

    def make_mask(
        self, *, allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False, **options: Any
    ) -> Tensor | None:
        """transformers' mask function for SDPA; the signature is transformers' own."""
        from transformers.masking_utils import sdpa_mask

        mask: Tensor | None = sdpa_mask(
            allow_is_causal_skip=allow_is_causal_skip and self._skip_causal,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip and self._skip_full,
            **options,
        )
        return mask

    def is_causal(self, module: nn.Module, asked: bool | None, queries: int) -> bool:
        """Whether a call without a mask hides later keys; one query alone sees all keys."""
        if queries == 1:
            return False
        if not self._as_sdpa:
            return self._skip_causal
        return bool(getattr(module, "is_causal", True)) if asked is None else asked
