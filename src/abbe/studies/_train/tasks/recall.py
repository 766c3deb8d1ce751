"""Key-value recall: which value belongs to this key? For one head, and (MQAR) for a transformer that reads tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...._arguments import whole
from ..network.attention import AttentionSettings
from ..network.decoder import Decoder
from ..network.layers import Generators
from ..network.reader import SymbolReader
from .task import Batch, Task

_MOST_SYMBOLS, _LONGEST = 1 << 17, 1 << 12  # a table of scores and rows of logits have to fit


class Recall(Task):
    """Pairs of symbols, then every key in another order: one head has to find the value of each.

    Keys of a sequence are distinct; the table from keys to values is new in every sequence, so nothing but attention
    can solve it.
    """

    name = "recall"
    steps, batch, width, heads = 600, 32, 16, 1

    def __init__(self, pairs: int = 24, symbols: int = 128) -> None:
        self.pairs = whole("pairs", pairs, least=1)
        self.symbols = whole("symbols", symbols, least=pairs, most=_MOST_SYMBOLS)  # keys are distinct
        self.meaning = f"key-value recall ({pairs} pairs of {symbols:,} symbols) with one head"
        self.chance = 1 / symbols

    def network(self, generators: Generators, settings: AttentionSettings, dtype: torch.dtype) -> nn.Module:
        return SymbolReader(generators, settings, self.symbols, dtype)

    def sample(self, generator: torch.Generator, size: int, length: int | None = None, *, held_out: bool) -> Batch:
        pairs = length or self.pairs
        keys = _distinct(generator, size, self.symbols, pairs)
        values = torch.randint(self.symbols, (size, pairs), generator=generator)
        order = _distinct(generator, size, pairs, pairs)
        return Batch((keys.gather(1, order), keys, values), values.gather(1, order))

    def facts(self) -> dict[str, Any]:
        return {"task": self.name, "pairs": self.pairs, "symbols": self.symbols}


class Mqar(Task):
    """Multi-query associative recall (arXiv 2312.04927): k v k v ... then blanks, with the keys again among them.

    The answer is due at the position of the repeated key. The first half of the symbols are keys, the second values;
    the last one is the blank. The smallest setting there has 8,192 symbols and 64 tokens.
    """

    name = "mqar"
    steps, batch, width, heads = 1000, 32, 64, 1
    ordered = True

    def __init__(self, pairs: int = 4, symbols: int = 64, length: int = 32, layers: int = 2) -> None:
        self.pairs = whole("pairs", pairs, least=1)
        self.symbols = whole("symbols", symbols, least=2 * pairs + 1, most=_MOST_SYMBOLS)
        self.length = whole("length", length, least=3 * pairs, most=_LONGEST)  # the pairs, then every key again
        self.layers = layers
        self.kinds = (symbols - 1) // 2  # as many keys as values, and a blank
        sizes = f"{pairs} pairs of {symbols:,} symbols in {length:,} tokens"
        self.meaning = f"multi-query associative recall ({sizes}) with a causal transformer"
        self.chance = 1 / pairs  # by copying any value of the sequence

    def network(self, generators: Generators, settings: AttentionSettings, dtype: torch.dtype) -> nn.Module:
        sizes = {"tokens": self.symbols, "context": self.length, "layers": self.layers}
        return Decoder(generators, settings, dtype, **sizes, hidden=2 * settings.width)

    def sample(self, generator: torch.Generator, size: int, length: int | None = None, *, held_out: bool) -> Batch:
        pairs, whole = self.pairs, length or self.length
        keys = _distinct(generator, size, self.kinds, pairs)
        values = self.kinds + torch.randint(self.kinds, (size, pairs), generator=generator)
        tokens = torch.full((size, whole), self.symbols - 1)
        tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
        places = 2 * pairs + _distinct(generator, size, whole - 2 * pairs, pairs)
        return Batch((tokens.scatter(1, places, keys), places), values)

    def facts(self) -> dict[str, Any]:
        sizes = {"pairs": self.pairs, "symbols": self.symbols, "length": self.length, "layers": self.layers}
        return {"task": self.name, **sizes}


def _distinct(generator: torch.Generator, size: int, of: int, count: int) -> torch.Tensor:
    """For each sequence, `count` different whole numbers below `of`."""
    return torch.rand(size, of, generator=generator).argsort(1)[:, :count]
