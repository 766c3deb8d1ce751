"""A task: endless batches from a generator, a network that can solve it, and the accuracy of guessing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..network.attention import AttentionSettings
from ..network.layers import Generators


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of a network, and the right class for every question."""

    inputs: tuple[Tensor, ...]
    targets: Tensor


class Task(ABC):
    """One task at one size.

    Attributes:
        steps, batch: a usual training run.
        width, heads: of a usual network.
        chance: accuracy of guessing.
        test_lengths: lengths at which accuracy is also measured, if the task has any.
        ordered: whether its keys are in causal order.
    """

    name: ClassVar[str]
    meaning: str
    steps: int
    batch: int
    width: int
    heads: int
    chance: float
    test_lengths: tuple[int, ...] = ()
    ordered: ClassVar[bool] = False

    @abstractmethod
    def network(self, generators: Generators, settings: AttentionSettings, dtype: torch.dtype) -> nn.Module:
        """An untrained network with this attention."""

    @abstractmethod
    def sample(self, generator: torch.Generator, size: int, length: int | None = None, *, held_out: bool) -> Batch:
        """`size` sequences, determined by the state of the generator; `length` for tasks with several lengths."""

    def training_length(self, generator: torch.Generator) -> int | None:
        """Length of the next batch, for tasks with several lengths."""
        return None

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Sizes and, for a text, its fingerprint: they identify the task of a run."""


def stacked(batches: Sequence[Batch]) -> Batch:
    """The batches of all seeds as one, (seed, batch, ...)."""
    parts = zip(*(one.inputs for one in batches), strict=True)
    return Batch(tuple(torch.stack(part) for part in parts), torch.stack([one.targets for one in batches]))
