"""The next character of a text: the last tenth is held out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn

from ...._errors import AbbeError
from ....models import Text
from ..network.attention import AttentionSettings
from ..network.decoder import Decoder, DecoderShape
from ..network.layers import Generators
from .task import Batch, Task, describe

_HELD_OUT = 0.1
_MOST = 256  # characters with a symbol of their own; rarer ones share one


class NextCharacter(Task):
    """Windows of a text, predicted character by character."""

    name = "text"
    meaning = "a character model of a text"
    steps, batch, width, heads = 400, 16, 128, 4
    ordered = True

    def __init__(self, text: Text, length: int = 96, layers: int = 2) -> None:
        self.text, self.length, self.layers = text, length, layers
        common = [one for one, _ in Counter(text.content).most_common(_MOST - 1)]
        place = {one: number for number, one in enumerate(sorted(common), 1)}  # 0: all others
        self.symbols = len(place) + 1
        codes = torch.tensor([place.get(one, 0) for one in text.content])
        cut = len(codes) - int(_HELD_OUT * len(codes))
        self.parts = {False: codes[:cut], True: codes[cut:]}
        if len(self.parts[True]) < 2 * (length + 1):
            least = int(2 * (length + 1) / _HELD_OUT)
            raise AbbeError(
                f"{text.name} has {len(codes):,} characters, too few for windows of {length}: give at least {least:,}"
            )
        counts = torch.bincount(self.parts[True])
        self.chance = float(counts.max() / counts.sum())  # who always says the most common character

    def network(self, generators: Generators, settings: AttentionSettings, dtype: torch.dtype) -> nn.Module:
        return Decoder(generators, settings, DecoderShape(self.symbols, self.length, self.layers), dtype)

    def sample(self, generator: torch.Generator, size: int, length: int | None = None, *, held_out: bool) -> Batch:
        codes, window = self.parts[held_out], length or self.length
        starts = torch.randint(len(codes) - window, (size,), generator=generator)
        windows = codes[starts[:, None] + torch.arange(window + 1)]
        return Batch((windows[:, :-1],), windows[:, 1:])

    def facts(self) -> dict[str, Any]:
        sizes = {"length": self.length, "layers": self.layers, "text": self.text.fingerprint}
        return describe(self, sizes)
