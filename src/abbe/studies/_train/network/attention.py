"""Attention with any normalizer at any temperature, for several seeds at once; what it computed can be looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from ....normalizers import Normalizer
from ....normalizers import normalizer as make_normalizer
from ..temperature import Temperature
from .layers import Generators, Linear, unit_rms


@dataclass(frozen=True)
class AttentionSettings:
    """What all layers of a network share.

    `compensated` starts the query map T times as large as usual, so that the logits start as they do at T = 1.
    """

    width: int
    heads: int
    normalizer: str = "softmax"
    temperature: Temperature = field(default_factory=Temperature)
    qk_norm: bool = False
    compensated: bool = False


@dataclass(frozen=True, eq=False)
class Seen:
    """One call: logits (seed, batch, head, query, key), -inf for hidden keys, and what they came from."""

    query: Tensor
    key: Tensor
    value: Tensor
    logits: Tensor


class Attention(nn.Module):
    """Queries of one sequence over the keys and values of another (or the same), with linear maps around."""

    def __init__(self, generators: Generators, settings: AttentionSettings, dtype: torch.dtype) -> None:
        super().__init__()
        self.settings = settings
        width = settings.width
        start = settings.temperature.start
        gain = start if settings.compensated else 1.0
        self.query = Linear(generators, width, width, bias=False, dtype=dtype, gain=gain)
        self.key = Linear(generators, width, width, bias=False, dtype=dtype)
        self.value = Linear(generators, width, width, bias=False, dtype=dtype)
        self.out = Linear(generators, width, width, bias=False, dtype=dtype)
        seeds = len(generators)
        self.log_temperature = (
            nn.Parameter(torch.full((seeds, 1, 1, 1, 1), start, dtype=torch.float64).log().to(dtype))
            if settings.temperature.learned
            else None
        )
        # A normalizer that learns has numbers for each seed; one that does not serves all.
        one = make_normalizer(settings.normalizer)
        learns = any(True for _ in one.parameters())
        more = [make_normalizer(settings.normalizer) for _ in range(seeds - 1)] if learns else []
        self.normalizers = nn.ModuleList([one, *more]).to(dtype)
        self.watched = False
        self.seen: Seen | None = None
        self.progress = 0.0  # of the run, for a scheduled temperature

    def normalizer_of(self, seed: int) -> Normalizer:
        """The one that this seed uses."""
        return cast(Normalizer, self.normalizers[seed if len(self.normalizers) > 1 else 0])

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None = None) -> Tensor:
        """(seed, batch, query, width); `visible` (query, key) says which keys a query sees."""
        q, k, v = self._by_head(self.query(x)), self._by_head(self.key(keys)), self._by_head(self.value(values))
        if self.settings.qk_norm:
            q, k = unit_rms(q), unit_rms(k)
        logits = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5 / self._temperature()
        if visible is not None:
            logits = logits.masked_fill(~visible, -torch.inf)
        if self.watched:
            for part in (q, k, v):
                if part.requires_grad:
                    part.retain_grad()
            self.seen = Seen(q, k, v, logits.detach())
        if len(self.normalizers) == 1:
            weights = self.normalizers[0](logits)
        else:
            each = [made(of_seed) for made, of_seed in zip(self.normalizers, logits.unbind(0), strict=True)]
            weights = torch.stack(each)
        y: Tensor = self.out((weights @ v).transpose(2, 3).flatten(-2))
        return y

    def temperatures(self) -> list[float]:
        """Of each seed, now."""
        if self.log_temperature is not None:
            return [float(x) for x in self.log_temperature.detach().double().exp().flatten()]
        return [self.settings.temperature.at(self.progress)] * self.query.weight.shape[0]

    def _temperature(self) -> Tensor | float:
        if self.log_temperature is not None:
            return self.log_temperature.exp()
        return self.settings.temperature.at(self.progress)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.settings.heads, -1)).transpose(2, 3)
