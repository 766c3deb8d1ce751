"""The next character of a text: the last tenth is held out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn

from ...._errors import AbbeError
from ....models import Text
from ..network.attention import AttentionSettings
from ..network.decoder import Decoder
from ..network.layers import Generators
from .task import Batch, Task

_HELD_OUT = 0.1
_MOST = 256  # symbols; the rarest characters share one


class NextCharacter(Task):
    """Windows of a text, predicted character by character."""

    name = "text"
    meaning = "a character model of a text"
    steps, batch, width, heads = 400, 16, 128, 4
    ordered = True

    def __init__(self, text: Text, length: int = 96, layers: int = 2) -> None:
        self.text, self.length, self.layers = text, length, layers
        common = [character for character, _ in Counter(text.content).most_common(_MOST - 1)]
        code = {character: number for number, character in enumerate(sorted(common), 1)}  # 0: all others
        self.symbols = len(code) + 1
        codes = torch.tensor([code.get(character, 0) for character in text.content])
        cut = len(codes) - int(_HELD_OUT * len(codes))
        self.parts = {False: codes[:cut], True: codes[cut:]}
        if len(self.parts[True]) < 2 * (length + 1):
            least = int(2 * (length + 1) / _HELD_OUT)
            raise AbbeError(
                f"{text.name} has {len(codes):,} characters, too few for windows of {length}: give at least {least:,}"
            )
        counts = torch.bincount(self.parts[True])
        self.chance = float(counts.max() / counts.sum())  # by always guessing the most common character

    def network(self, generators: Generators, settings: AttentionSettings, dtype: torch.dtype) -> nn.Module:
        sizes = {"tokens": self.symbols, "context": self.length, "layers": self.layers}
        return Decoder(generators, settings, dtype, **sizes, hidden=4 * settings.width)

    def sample(self, generator: torch.Generator, size: int, length: int | None = None, *, held_out: bool) -> Batch:
        codes, window = self.parts[held_out], length or self.length
        starts = torch.randint(len(codes) - window, (size,), generator=generator)
        windows = codes[starts[:, None] + torch.arange(window + 1)]
        return Batch((windows[:, :-1],), windows[:, 1:])

    def facts(self) -> dict[str, Any]:
        return {"task": self.name, "length": self.length, "layers": self.layers, "text": self.text.fingerprint}
