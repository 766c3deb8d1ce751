"""A causal transformer: token and position tables, layers of attention and perceptron, scores of all tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .attention import Attention, AttentionSettings
from .layers import Embedding, Generators, Linear, Perceptron, unit_rms


class Decoder(nn.Module):
    """Pre-norm, without biases in attention; norms have no gains, so that only maps have a scale."""

    def __init__(
        self, generators: Generators, settings: AttentionSettings, dtype: torch.dtype, *,
        tokens: int, context: int, layers: int, hidden: int,
    ) -> None:  # fmt: skip
        """`hidden` features in each perceptron."""
        super().__init__()
        width = settings.width
        self.tokens = Embedding(generators, tokens, width, dtype=dtype, scale=0.5)
        self.positions = Embedding(generators, context, width, dtype=dtype, scale=0.5)
        self.layers = nn.ModuleList(_Layer(generators, settings, hidden, dtype) for _ in range(layers))
        self.scores = Linear(generators, width, tokens, bias=False, dtype=dtype)

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
        scores: Tensor = self.scores(unit_rms(x))
        return scores


class _Layer(nn.Module):
    def __init__(self, generators: Generators, settings: AttentionSettings, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.attention = Attention(generators, settings, dtype)
        self.perceptron = Perceptron(generators, settings.width, hidden, settings.width, dtype=dtype)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        inner = unit_rms(x)
        x = x + self.attention(inner, inner, inner, visible)
        y: Tensor = x + self.perceptron(unit_rms(x))
        return y
