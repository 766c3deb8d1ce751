"""Attention with any normalizer at any temperature, for several seeds at once; a watched call can be inspected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from .... import normalizers
from ...._attention import attention
from ....normalizers import Normalizer, support_map
from ..temperature import Temperature
from .layers import Generators, Linear, unit_rms


@dataclass(frozen=True)
class AttentionSettings:
    """Settings of all layers of a network.

    `compensated` starts the query map at T times its usual size, so that the logits start as they do at T = 1.
    """

    width: int
    heads: int
    normalizer: str = "softmax"
    temperature: Temperature = field(default_factory=Temperature)
    qk_norm: bool = False
    compensated: bool = False


@dataclass(frozen=True, eq=False)
class Seen:
    """One call: logits (seed, batch, head, query, key), -inf for hidden keys, and the vectors behind them."""

    query: Tensor
    key: Tensor
    value: Tensor
    logits: Tensor


class Attention(nn.Module):
    """Queries of one sequence over the keys and values of another (or the same), with linear maps."""

    def __init__(self, generators: Generators, settings: AttentionSettings, dtype: torch.dtype) -> None:
        super().__init__()
        self.settings = settings
        width, start = settings.width, settings.temperature.start

        def linear(gain: float = 1.0) -> Linear:
            return Linear(generators, width, width, bias=False, dtype=dtype, gain=gain)

        self.query = linear(gain=start if settings.compensated else 1.0)
        self.key, self.value, self.out = linear(), linear(), linear()
        seeds = len(generators)
        self.log_temperature = (
            nn.Parameter(torch.full((seeds, 1, 1, 1, 1), start, dtype=torch.float64).log().to(dtype))
            if settings.temperature.learned
            else None
        )
        # A normalizer that learns has parameters for each seed; one that does not serves all seeds.
        one = normalizers.normalizer(settings.normalizer)
        learns = any(True for _ in one.parameters())
        more = [normalizers.normalizer(settings.normalizer) for _ in range(seeds - 1)] if learns else []
        self.normalizers = nn.ModuleList([one, *more]).to(dtype)
        self.watched = False
        self.seen: Seen | None = None
        self.entropy: Tensor | None = None  # of the last weights without gradients, (seed, batch, head, query), nats
        self.progress = 0.0  # of the run, for a scheduled temperature

    def normalizer_of(self, seed: int) -> Normalizer:
        return cast(Normalizer, self.normalizers[seed if len(self.normalizers) > 1 else 0])

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None = None) -> Tensor:
        """(seed, batch, query, width); `visible` (query, key) says which keys a query sees."""
        q, k, v = self._by_head(self.query(x)), self._by_head(self.key(keys)), self._by_head(self.value(values))
        if self.settings.qk_norm:
            q, k = unit_rms(q), unit_rms(k)
        supported = self._has_support(q)
        logits = None if supported and not self.watched else self._logits(q, k, visible)
        if self.watched and logits is not None:
            for part in (q, k, v):
                if part.requires_grad:
                    part.retain_grad()
            self.seen = Seen(q, k, v, logits.detach())
        if logits is None or supported:
            # The numbers must not depend on being watched. Temperatures may differ by seed, so queries are scaled.
            read: Tensor = attention(q / self._temperature(), k, v, self.normalizer_of(0), mask=visible)
        else:
            read = self._weights(logits) @ v
        y: Tensor = self.out(read.transpose(2, 3).flatten(-2))
        return y

    def _logits(self, q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor:
        logits: Tensor = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5 / self._temperature()
        return logits if visible is None else logits.masked_fill(~visible, -torch.inf)

    def folded(self, x: Tensor, hidden: Tensor, items: Linear) -> Tensor:
        """forward(x, y, y) of y = items(hidden) for few queries and many keys, without computing y.

        The maps of keys and values are applied to the query and the weighted mean instead of every key. `x` (seed, 1,
        query, width) is the same in the whole batch.
        """
        seeds, batch, keys = hidden.shape[:3]
        heads = self.settings.heads
        q = self._by_head(self.query(x))[:, 0]  # (seed, head, query, feature)
        to_keys = q @ self.key.weight.view(seeds, -1, heads, q.shape[-1]).permute(0, 2, 3, 1)
        to_hidden = (to_keys @ items.weight.transpose(1, 2)[:, None]).flatten(1, 2)  # (seed, head * query, hidden)
        # One product per seed: torch's batched one is slow where the result has few columns.
        logits = torch.stack([rows.flatten(0, 1) @ one.T for rows, one in zip(hidden, to_hidden, strict=True)])
        logits = logits.view(seeds, batch, keys, heads, -1).permute(0, 1, 3, 4, 2)
        bias = 0.0 if items.bias is None else (to_keys @ items.bias.transpose(1, 2)[:, None])[:, None]
        weights = self._weights((logits + bias) * q.shape[-1] ** -0.5 / self._temperature())
        mean = (weights.flatten(2, 3) @ hidden).view(seeds, batch, heads, -1, hidden.shape[-1])
        y = mean @ items.weight[:, None, None]
        if items.bias is not None:  # weights need not sum to 1
            y = y + weights.sum(-1, keepdim=True) * items.bias[:, None, None]
        values = y @ self.value.weight.view(seeds, 1, -1, heads, q.shape[-1]).transpose(2, 3)
        read: Tensor = self.out(values.transpose(2, 3).flatten(-2))
        return read

    def use(self, normalizer: str) -> None:
        """Switch to another normalizer, untrained."""
        weight = self.query.weight
        self.normalizers = nn.ModuleList([normalizers.normalizer(normalizer)]).to(weight.device, weight.dtype)

    def _has_support(self, query: Tensor) -> bool:
        """Whether the map gives exact zeros, and `attention` reads and differentiates only its support."""
        if len(self.normalizers) > 1 or query.dtype != torch.float32 or query.device.type != "cpu":
            return False
        return support_map(self.normalizer_of(0), query, with_sink=False) is not None

    def _weights(self, logits: Tensor) -> Tensor:
        each = [logits] if len(self.normalizers) == 1 else logits.unbind(0)
        weights = [normalizer(rows) for normalizer, rows in zip(self.normalizers, each, strict=True)]
        together: Tensor = weights[0] if len(weights) == 1 else torch.stack(weights)
        if not torch.is_grad_enabled():
            total = together.sum(-1)  # weights need not sum to 1: as everywhere, the entropy of their shares
            self.entropy = total.log() + torch.special.entr(together).sum(-1) / total
        return together

    def temperatures(self) -> list[float]:
        """The current temperature of each seed."""
        if self.log_temperature is not None:
            return [float(x) for x in self.log_temperature.detach().cpu().double().exp().flatten()]
        return [self.settings.temperature.at(self.progress)] * self.query.weight.shape[0]

    def _temperature(self) -> Tensor | float:
        if self.log_temperature is not None:
            return self.log_temperature.exp()
        return self.settings.temperature.at(self.progress)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.settings.heads, -1).transpose(2, 3)
