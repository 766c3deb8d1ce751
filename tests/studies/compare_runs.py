"""Quick comparisons of a tiny model, for tests."""

from __future__ import annotations

from typing import Any

import polars as pl
import tiny_models
from inside import CompareSettings, as_alternatives
from needle_models import TEXT, word_tokenizer

from abbe.models import LoadedModel, wrap
from abbe.studies import Comparison, compare

QUICK: dict[str, Any] = {
    "normalizers": ["sparsemax", "topk:k=2"], "length": 40, "windows": 3, "queries": 6, "needle_lengths": [31, 40],
    "prompts": 1, "resamples": 50, "progress": False,
}  # fmt: skip
SETTINGS = CompareSettings(as_alternatives("sparsemax"), 40, 3, 6, 0.05, (31,), 1, False, 0, 0.95, 400)


def word_model() -> LoadedModel:
    tokenizer = word_tokenizer()
    return wrap(tiny_models.gpt2(vocab_size=len(tokenizer)), tokenizer, "tiny")


def made(**options: Any) -> Comparison:
    return compare(word_model(), TEXT, **(QUICK | options))


def row(comparison: Comparison, name: str) -> dict[str, Any]:
    return comparison.table.filter(pl.col("normalizer") == name).row(0, named=True)
