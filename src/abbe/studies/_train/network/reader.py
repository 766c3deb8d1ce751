"""One head that reads a set of items: a query per question, keys and values per item."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .attention import Attention, AttentionSettings
from .layers import Embedding, Generators, Linear, Perceptron


class SymbolReader(nn.Module):
    """Key-value recall: items and questions are symbols, each looked up in a table, then one attention layer.

    Head and tables have the same width, so `keys` (the table of questions and keys), maps and `symbols` suffice.
    """

    def __init__(self, generators: Generators, settings: AttentionSettings, symbols: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.keys = Embedding(generators, symbols, settings.width, dtype=dtype)
        self.values = Embedding(generators, symbols, settings.width, dtype=dtype)
        self.attention = Attention(generators, settings, dtype)
        self.symbols = Linear(generators, settings.width, symbols, bias=False, dtype=dtype)

    def forward(self, questions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Scores of all symbols, (seed, batch, question, symbol)."""
        read = self.attention(self.keys(questions), self.keys(keys), self.values(values))
        scores: Tensor = self.symbols(read)
        return scores


class SetReader(nn.Module):
    """Maximum retrieval: a perceptron encodes the items, a constant is the question, a perceptron answers.

    The architecture of arXiv 2410.01104, with a learned constant in place of its random question.
    """

    def __init__(
        self, generators: Generators, settings: AttentionSettings, features: int, classes: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        width = settings.width
        self.items = Perceptron(generators, features, width, width, dtype=dtype)
        self.question = Embedding(generators, 1, width, dtype=dtype)
        self.attention = Attention(generators, settings, dtype)
        self.answer = Perceptron(generators, width, width, classes, dtype=dtype)

    def forward(self, items: Tensor) -> Tensor:
        """Scores of all classes, (seed, batch, 1, class)."""
        seeds, batch = items.shape[:2]
        question = self.question(torch.zeros(seeds, 1, 1, dtype=torch.long, device=items.device))
        if torch.is_grad_enabled() or self.attention.watched or self.attention.settings.qk_norm:
            inner = self.items(items)
            read = self.attention(question.expand(-1, batch, -1, -1), inner, inner)
        else:  # long tests, 20 times faster
            read = self.attention.folded(question, nn.functional.gelu(self.items.first(items)), self.items.second)
        scores: Tensor = self.answer(read)
        return scores
