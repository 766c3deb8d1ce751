"""Quick comparisons of a tiny model, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl
import pytest
import tiny_models
from inside import compare_rules
from needle_models import TEXT, word_tokenizer
from rich.console import Console

from abbe.models import LoadedModel, wrap
from abbe.runs import measuring
from abbe.runs.watch import Watch
from abbe.studies import Comparison, compare

QUICK: dict[str, Any] = {
    "normalizers": ["sparsemax", "topk:k=2"], "length": 40, "windows": 3, "queries": 6, "needle_lengths": [31, 40],
    "prompts": 1, "resamples": 50, "progress": False,
}  # fmt: skip
SETTINGS = compare_rules.CompareSettings(40, 3, 6, 0.05, (31,), 1, False, 0, 0.95, 400)


def word_model() -> LoadedModel:
    tokenizer = word_tokenizer()
    return wrap(tiny_models.gpt2(vocab_size=len(tokenizer)), tokenizer, "tiny")


class Counted(Watch):
    """Counts the steps of a progress bar."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))
        self.silent, self.expected, self.done = True, 0, 0

    def expect(self, steps: int) -> None:
        self.expected = steps

    def step(self, what: str) -> None:
        self.done += 1


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    """What the calls of a study from now on show of their progress."""
    bars: list[Counted] = []

    @contextmanager
    def watching(_shown: bool) -> Iterator[Counted]:
        bars.append(Counted())
        yield bars[-1]

    monkeypatch.setattr(measuring, "watching", watching)
    return bars


def made(**options: Any) -> Comparison:
    return compare(word_model(), TEXT, **(QUICK | options))


def row(comparison: Comparison, name: str) -> dict[str, Any]:
    return comparison.table.filter(pl.col("normalizer") == name).row(0, named=True)
