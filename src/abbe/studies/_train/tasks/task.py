"""What a task is: batches without end from a generator, a network that can solve it, and what chance would get."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..network.attention import AttentionSettings
from ..network.layers import Generators

IGNORED = -100  # a target that is not scored


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of a network, and the right class for every question; IGNORED where nothing is asked."""

    inputs: tuple[Tensor, ...]
    targets: Tensor


class Task(ABC):
    """One task at one size.

    Attributes:
        steps, batch: a usual training run.
        width, heads: of a usual network.
        chance: accuracy of who always guesses.
        test_lengths: lengths at which accuracy is also measured, if the task has any.
        ordered: its keys stand in causal order.
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
        """A network with the attention that was asked for, untrained."""

    @abstractmethod
    def sample(self, generator: torch.Generator, size: int, length: int | None = None, *, held_out: bool) -> Batch:
        """So many sequences, the same for the same state of the generator; `length` for tasks that have several."""

    def training_length(self, generator: torch.Generator) -> int | None:
        """Of the next batch, for a task of several lengths."""
        return None

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Sizes and, for a text, its fingerprint: what a run must share to be the same."""


def stacked(batches: Sequence[Batch]) -> Batch:
    """The batches of all seeds as one, (seed, batch, ...)."""
    parts = zip(*(one.inputs for one in batches), strict=True)
    return Batch(tuple(torch.stack(part) for part in parts), torch.stack([one.targets for one in batches]))


def describe(task: Task, sizes: Mapping[str, Any]) -> dict[str, Any]:
    return {"task": task.name, **sizes}
