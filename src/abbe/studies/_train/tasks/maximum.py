"""Maximum retrieval (arXiv 2410.01104): which class has the item of the highest priority?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..network.attention import AttentionSettings
from ..network.layers import Generators
from ..network.reader import SetReader
from .task import Batch, Task


class Maximum(Task):
    """Items with a priority in (0, 1) and one of ten classes; trained on up to 16 items, tested on many more."""

    name = "maximum"
    steps, batch, width, heads = 3000, 128, 32, 1
    test_lengths: tuple[int, ...] = (16, 64, 256, 1024, 4096, 16384)

    def __init__(self, longest: int = 16, classes: int = 10, lengths: Sequence[int] | None = None) -> None:
        self.longest, self.classes = longest, classes
        self.test_lengths = self.test_lengths if lengths is None else tuple(lengths)
        tested = f"tested on up to {max(self.test_lengths):,}"
        self.meaning = f"maximum retrieval, trained on up to {longest} items and {tested}"
        self.chance = 1 / classes

    def network(self, generators: Generators, settings: AttentionSettings, dtype: torch.dtype) -> nn.Module:
        return SetReader(generators, settings, 1 + self.classes, self.classes, dtype)

    def training_length(self, generator: torch.Generator) -> int:
        return int(torch.randint(1, self.longest + 1, (), generator=generator))

    def sample(self, generator: torch.Generator, size: int, length: int | None = None, *, held_out: bool) -> Batch:
        items = length or self.longest
        priority = torch.rand(size, items, generator=generator)
        kind = torch.randint(self.classes, (size, items), generator=generator)
        one_hot = nn.functional.one_hot(kind, self.classes).to(priority.dtype)
        best = priority.argmax(1, keepdim=True)
        return Batch((torch.cat([priority[..., None], one_hot], -1),), kind.gather(1, best))

    def facts(self) -> dict[str, Any]:
        lengths = list(self.test_lengths)
        return {"task": self.name, "longest": self.longest, "classes": self.classes, "lengths": lengths}
