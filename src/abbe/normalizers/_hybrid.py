"""A mixture of two normalizers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._errors import AbbeError
from ._base import Normalizer
from ._dispatch import RowMap, blended_weights
from ._options import Option, PerHead, heads_option, learn_option


class Hybrid(Normalizer):
    """mix A + (1 - mix) B, mix in [0, 1] fixed or learned per head.

    Jacobian: the same mixture of the Jacobians. `lipschitz` is the mixture of the two constants, an upper bound.
    As n grows: the mixture of the two behaviours, so a share of B survives whatever A does.
    """

    name = "hybrid"
    meaning = "mixes two selection rules; high mix means a, low mix means b"
    paper = "2508.17821 (called for there)"
    example = "hybrid:a=softmax,b=topk:k=32,mix=0.5"
    options = (
        Option("a", "softmax", "first normalizer", "normalizer", shown=True),
        Option("b", "sparsemax", "second normalizer", "normalizer", shown=True),
        Option("mix", 0.5, "share of a", low=0, high=1, closed="both", shown=True),
        learn_option(),
        heads_option(),
    )
    learnable = ("mix",)
    mix: PerHead

    def __init__(self, **given: Any) -> None:
        from ._registry import normalizer

        made = {key: normalizer(given.get(key, default)) for key, default in (("a", "softmax"), ("b", "sparsemax"))}
        super().__init__(**(given | made))
        self.a, self.b = made["a"], made["b"]
        self.sums_to_one = self.a.sums_to_one and self.b.sums_to_one  # type: ignore[misc]
        self.continuous = self.a.continuous and self.b.continuous  # type: ignore[misc]

    def _validate(self, logits: Tensor, mask: Tensor | None) -> None:
        super()._validate(logits, mask)
        for part in (self.a, self.b):
            try:
                part._validate(logits, None)
            except AbbeError as error:
                raise AbbeError(f"hybrid: {error}") from None

    @property
    def is_one_map(self) -> bool:
        return False

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        raise TypeError("a hybrid is two maps")

    def _weights(self, logits: Tensor) -> Tensor:
        if "mix" in self.learned or not (self.a.is_one_map and self.b.is_one_map):
            return torch.lerp(self.b._weights(logits), self.a._weights(logits), self._value("mix", logits))
        return blended_weights(self.a._map(logits), self.b._map(logits), logits, self._given["mix"])

    def _jacobian(self, logits: Tensor) -> Tensor:
        mix = self._value("mix", logits).unsqueeze(-1)
        return mix * self.a._jacobian(logits) + (1 - mix) * self.b._jacobian(logits)

    def _lipschitz(self, keys: int) -> float:
        first, second = self.a._lipschitz(keys), self.b._lipschitz(keys)
        shares = self._learned("mix").value().flatten().tolist() if "mix" in self.learned else [self._given["mix"]]
        return max(_mixed(share, first, second) for share in shares)


def _mixed(share: float, first: float, second: float) -> float:
    """share * first + (1 - share) * second, where a share of 0 wipes out an infinite constant."""
    return (share * first if share > 0 else 0.0) + ((1 - share) * second if share < 1 else 0.0)
