"""Quick comparisons of a tiny model, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
import tiny_models
from inside import compare_rules
from needle_models import TEXT, word_tokenizer

from abbe.models import LoadedModel, wrap
from abbe.runs.watch import Watch
from abbe.studies import Comparison, compare
from abbe.words.finding import Finding
from abbe.words.names import BASELINE

QUICK: dict[str, Any] = {
    "normalizers": ["sparsemax", "topk:k=2"], "length": 40, "windows": 3, "queries": 6, "needle_lengths": [31, 40],
    "prompts": 1, "resamples": 50, "progress": False,
}  # fmt: skip
SETTINGS = compare_rules.CompareSettings(40, 3, 6, 0.05, (31,), 1, False, 0, 0.95, 400)


def word_model() -> LoadedModel:
    tokenizer = word_tokenizer()
    return wrap(tiny_models.gpt2(vocab_size=len(tokenizer)), tokenizer, "tiny")


def counted(monkeypatch: pytest.MonkeyPatch, times: int, call: Callable[[], object]) -> list[tuple[int, int]]:
    """Steps that were done and those that were expected, as the first progress bar is told by each call."""
    bars: list[tuple[int, int]] = []
    for _ in range(times):
        seen: dict[int, list[int]] = {}  # by bar: studies within a study have bars of their own
        monkeypatch.setattr(Watch, "expect", lambda bar, steps, seen=seen: seen.update({id(bar): [0, steps]}))
        monkeypatch.setattr(Watch, "step", lambda bar, _, seen=seen: seen[id(bar)].__setitem__(0, seen[id(bar)][0] + 1))
        call()
        done, expected = next(iter(seen.values()))
        bars.append((done, expected))
    return bars


def made(**options: Any) -> Comparison:
    return compare(word_model(), TEXT, **(QUICK | options))


def row(comparison: Comparison, name: str) -> dict[str, Any]:
    return comparison.table.filter(pl.col("normalizer") == name).row(0, named=True)


# -- Planted tables, for the rule -------------------------------------------------------------------------------------

# Costs nothing, and is no better.
EVEN: dict[str, Any] = {
    "loss": 3.0, "loss_low": 2.9, "loss_high": 3.1, "loss_change": 0.0, "loss_change_low": -0.003,
    "loss_change_high": 0.003, "loss_rise": 0.0, "loss_rise_low": -0.001, "loss_rise_high": 0.001,
    "active": 200.0, "active_low": 190.0, "active_high": 210.0, "separable_gain": 0.0, "separable_gain_low": -0.01,
    "separable_gain_high": 0.01, "capacity_ratio": 1.0, "capacity_ratio_low": 0.9, "capacity_ratio_high": 1.1,
    "needle_accuracy": 0.5, "needle_accuracy_low": 0.4, "needle_accuracy_high": 0.6,
    "needle_gain": 0.0, "needle_gain_low": -0.05, "needle_gain_high": 0.05,
}  # fmt: skip
SPARSE = {"active": 31.2, "active_low": 31.0, "active_high": 31.5, "loss_rise": 0.005, "separable_gain_low": 0.2}
FEWER = {"capacity_ratio_high": 0.5}


def planted(own: dict[str, Any] | None = None, **alternatives: dict[str, Any]) -> pl.DataFrame:
    rows = [{"normalizer": BASELINE} | EVEN | (own or {})]
    rows += [{"normalizer": name} | EVEN | new for name, new in alternatives.items()]
    return Comparison.frame().of(rows)


DEAR = {"loss": 4.0, "loss_rise": 0.3, "loss_rise_high": 0.4} | FEWER
ALONE = {f"{name}{end}": None for name in ("loss", "loss_change", "loss_rise") for end in ("_low", "_high")}
TWO = FEWER | {"needle_gain_low": 0.07, "loss": 3.02}


def judged(windows: int = 8, level: float = 0.95, **rows: Any) -> tuple[pl.DataFrame, Finding]:
    manifest = {"windows": range(windows), "settings": {"level": level}}
    made = Comparison.of(planted(**rows), Comparison.frame("needle").of([]), manifest)
    return made.judgements, made.recommendation
