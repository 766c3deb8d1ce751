"""Small networks in which several seeds are trained at once, with attention of any normalizer at any temperature.

Parameters are (seed, ...), so that one matrix product serves all seeds, and each seed draws from its own generator. No
operation mixes seeds, so the gradient of the summed loss is, for each seed, that of its own loss. Networks start in
float64; `.to(dtype)` rounds the values that were drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from .. import normalizers
from .._attention import attention
from .._errors import AbbeError
from ..normalizers import Normalizer, support_map

_KINDS: dict[str, Callable[[float, float, float], float]] = {
    "linear": lambda a, b, done: a + (b - a) * done,
    "geometric": lambda a, b, done: a * (b / a) ** done,
    "cosine": lambda a, b, done: b + (a - b) * (1 + math.cos(math.pi * done)) / 2,
}
_LEAST = 1e-30  # logits divided by a smaller one overflow in float32
_ALLOWED = "a number > 0, learned, learned:0.1, or a schedule such as geometric:1:0.1 (linear, geometric, cosine)"


@dataclass(frozen=True)
class Temperature:
    """`start` is the value for all steps, or the first one if it is learned or follows a schedule to `end`."""

    start: float = 1.0
    learned: bool = False
    schedule: str = ""
    end: float = 1.0

    def at(self, done: float) -> float:
        """The value after this share of the run."""
        return _KINDS[self.schedule](self.start, self.end, min(1.0, done)) if self.schedule else self.start

    @property
    def fixed(self) -> bool:
        return not self.learned and not self.schedule

    def __str__(self) -> str:
        if self.schedule:
            return f"{self.schedule}:{self.start:g}:{self.end:g}"
        if self.learned:
            return "learned" if self.start == 1 else f"learned:{self.start:g}"
        return f"{self.start:g}"


def temperature(given: str | float) -> Temperature:
    """A temperature from a number, or from words such as "learned" and "geometric:1:0.1"."""
    kind, *numbers = str(given).strip().split(":")
    named = kind == "learned" or kind in _KINDS
    with suppress(ValueError):  # not a number
        values = [float(number) for number in (numbers if numbers or named else [kind])]
        if all(_LEAST <= value <= 1 / _LEAST for value in values):
            if kind == "learned" and len(values) <= 1:
                return Temperature(values[0] if values else 1.0, learned=True)
            if kind in _KINDS and len(values) == 2:
                return Temperature(values[0], schedule=kind, end=values[1])
            if not named and not numbers:
                return Temperature(values[0])
    raise AbbeError(f"temperature is {str(given)!r}, but must be {_ALLOWED}")


Generators = Sequence[torch.Generator]


def drawn(generators: Generators, *shape: int, scale: float) -> nn.Parameter:
    """Scaled standard normal numbers, for each seed from its own generator."""
    each = [torch.randn(*shape, generator=generator, dtype=torch.float64) * scale for generator in generators]
    return nn.Parameter(torch.stack(each))


class Part(nn.Module):
    """A part of a network, from tensors to a tensor."""

    __call__: Callable[..., Tensor]


class Linear(Part):
    """x W (+ b); the entries of W (seed, in, out) have variance 1/in, so outputs are as large as inputs."""

    def __init__(self, generators: Generators, inputs: int, outputs: int, *, bias: bool, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = drawn(generators, inputs, outputs, scale=gain * inputs**-0.5)
        self.bias = nn.Parameter(torch.zeros(len(generators), 1, outputs, dtype=torch.float64)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1, -2)
        y = flat @ self.weight if self.bias is None else torch.baddbmm(self.bias, flat, self.weight)
        return y.view(len(y), *x.shape[1:-1], -1)


class Embedding(Part):
    """Rows of a table (seed, symbol, feature)."""

    def __init__(self, generators: Generators, symbols: int, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = drawn(generators, symbols, width, scale=scale)

    def forward(self, symbols: Tensor) -> Tensor:
        """Embed whole numbers (seed, ...) as (seed, ..., feature)."""
        seeds, count, width = self.weight.shape
        offsets = torch.arange(seeds, device=symbols.device).view(-1, *[1] * (symbols.dim() - 1)) * count
        return nn.functional.embedding(symbols + offsets, self.weight.view(seeds * count, width))


class Perceptron(Part):
    """Linear, GELU, linear."""

    def __init__(self, generators: Generators, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = Linear(generators, inputs, hidden, bias=True)
        self.second = Linear(generators, hidden, outputs, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.gelu(self.first(x)))


def unit_rms(x: Tensor) -> Tensor:
    """Every vector scaled to a mean square of 1; without a gain, so that no parameter can undo it."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)  # the usual epsilon: a vector of zeros stays zero


def learns(normalizer: Normalizer) -> bool:
    return any(True for _ in normalizer.parameters())


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


class Attention(Part):
    """Queries of one sequence over the keys and values of another (or the same), with linear maps."""

    def __init__(self, generators: Generators, settings: AttentionSettings) -> None:
        super().__init__()
        self.settings = settings
        width, start, seeds = settings.width, settings.temperature.start, len(generators)
        gains = (start if settings.compensated else 1.0, 1.0, 1.0, 1.0)
        self.query, self.key, self.value, self.out = (
            Linear(generators, width, width, bias=False, gain=gain) for gain in gains
        )
        log_start = torch.full((seeds, 1, 1, 1, 1), start, dtype=torch.float64).log()
        self.log_temperature = nn.Parameter(log_start) if settings.temperature.learned else None
        # A normalizer that learns has parameters for each seed; one that does not serves all seeds.
        first = normalizers.normalizer(settings.normalizer)
        more = [normalizers.normalizer(settings.normalizer) for _ in range(seeds - 1)] if learns(first) else []
        self.normalizers = nn.ModuleList([first, *more]).double()
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
        return self.out(read.transpose(2, 3).flatten(-2))

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
        return self.out(values.transpose(2, 3).flatten(-2))

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


class SymbolReader(Part):
    """Key-value recall: items and questions are symbols, each looked up in a table, then one attention layer.

    Head and tables have the same width, so `keys` (the table of questions and keys), maps and `symbols` suffice.
    """

    def __init__(self, generators: Generators, settings: AttentionSettings, symbols: int) -> None:
        super().__init__()
        self.keys = Embedding(generators, symbols, settings.width)
        self.values = Embedding(generators, symbols, settings.width)
        self.attention = Attention(generators, settings)
        self.symbols = Linear(generators, settings.width, symbols, bias=False)

    def forward(self, questions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Scores of all symbols, (seed, batch, question, symbol)."""
        return self.symbols(self.attention(self.keys(questions), self.keys(keys), self.values(values)))


class SetReader(Part):
    """Maximum retrieval: a perceptron encodes the items, a constant is the question, a perceptron answers.

    The architecture of arXiv 2410.01104, with a learned constant in place of its random question.
    """

    def __init__(self, generators: Generators, settings: AttentionSettings, features: int, classes: int) -> None:
        super().__init__()
        width = settings.width
        self.items = Perceptron(generators, features, width, width)
        self.question = Embedding(generators, 1, width)
        self.attention = Attention(generators, settings)
        self.answer = Perceptron(generators, width, width, classes)

    def forward(self, items: Tensor) -> Tensor:
        """Scores of all classes, (seed, batch, 1, class)."""
        seeds, batch = items.shape[:2]
        question = self.question(torch.zeros(seeds, 1, 1, dtype=torch.long, device=items.device))
        if torch.is_grad_enabled() or self.attention.watched or self.attention.settings.qk_norm:
            inner = self.items(items)
            read = self.attention(question.expand(-1, batch, -1, -1), inner, inner)
        else:  # long tests, 20 times faster
            read = self.attention.folded(question, nn.functional.gelu(self.items.first(items)), self.items.second)
        return self.answer(read)


class Decoder(Part):
    """Pre-norm, without biases in attention; norms have no gains, so that only maps have a scale."""

    def __init__(
        self, generators: Generators, settings: AttentionSettings, tokens: int, context: int, layers: int, hidden: int
    ) -> None:
        """`hidden` features in each perceptron."""
        super().__init__()
        width = settings.width
        self.tokens = Embedding(generators, tokens, width, scale=0.5)
        self.positions = Embedding(generators, context, width, scale=0.5)
        self.layers = nn.ModuleList(_Layer(generators, settings, hidden) for _ in range(layers))
        self.scores = Linear(generators, width, tokens, bias=False)

    def forward(self, tokens: Tensor, asked: Tensor | None = None) -> Tensor:
        """Scores of the next token, (seed, batch, position, token), at all positions or those `asked`."""
        length = tokens.shape[-1]
        places = torch.arange(length, device=tokens.device).expand(len(tokens), 1, length)
        x = self.tokens(tokens) + self.positions(places)
        visible = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        for layer in self.layers:
            x = layer(x, visible)
        if asked is not None:  # scores of many tokens cost more than the layers
            x = x.gather(-2, asked[..., None].expand(*asked.shape, x.shape[-1]))
        return self.scores(unit_rms(x))


class _Layer(Part):
    def __init__(self, generators: Generators, settings: AttentionSettings, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(generators, settings)
        self.perceptron = Perceptron(generators, settings.width, hidden, settings.width)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        inner = unit_rms(x)
        x = x + self.attention(inner, inner, inner, visible)
        return x + self.perceptron(unit_rms(x))
