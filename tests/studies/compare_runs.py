"""Quick comparisons of a tiny model, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import planted_parts
import polars as pl
import pytest
import tiny_models
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


EVEN_PARTS: dict[str, Any] = {
    "effective_tokens": 4.0, "active": 9.0, "zeros": 0.5, "separability": 0.5, "separable": 0.5,
    "distance_per_token": 1.0,
}  # fmt: skip


def from_records(*records: dict[str, Any], windows: int = 8, **options: Any) -> Comparison:
    """A comparison of these records, the baseline's first, then topk:k=1, ...; what a record lacks is even."""
    names = [BASELINE, *(f"topk:k={place}" for place in range(1, len(records)))]

    def numbers(part: str) -> dict[str, Any] | None:
        place, _, what = part.removeprefix("parts/").partition("-")
        if place == "speed":
            return {key: {name: record.get(key, 1.0) for name, record in zip(names, records, strict=True)}
                    for key in ("seconds", "megabytes")}  # fmt: skip
        if not place.isdecimal():
            return None
        record = records[int(place)]
        if record.get(what) is MEASURED:
            return None
        loss = record.get("loss", [4.0] * windows)
        known = {
            "windows": {name: [value] * windows for name, value in EVEN_PARTS.items()} | {"loss": loss},
            "capacity": {"full": loss, "points": {"1": loss}, "untouched": 40} | part_of(record, "capacity"),
            "sensitivity": {"alternative": [], "baseline": [], "temperature": None, "matched": 0, "heads": 4,
                            "jumps": False} | part_of(record, "sensitivity"),
            "needle": {"margins": record.get("margins", [1.0] * 20)},
        }  # fmt: skip
        return dict(known[what])

    asked = QUICK | {"normalizers": names[1:], "windows": windows, "resamples": 400} | options
    with planted_parts.planted(numbers):
        return compare(word_model(), TEXT, **asked)


MEASURED = object()  # in place of a part


def part_of(record: dict[str, Any], what: str) -> dict[str, Any]:
    given = record.get(what)
    return given if isinstance(given, dict) else {}


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
