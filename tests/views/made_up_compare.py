"""A comparison with made-up numbers of a plausible size, and pages of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import scipy.stats

from abbe.studies import Comparison
from abbe.words.names import BASELINE, JUMPS

KINDS, DEPTHS = ("key-value", "needle"), (0.0, 0.25, 0.5, 0.75, 1.0)

NAMES = (BASELINE, "entmax:alpha=1.5", "sparsemax", "topk:k=32", "topp:p=0.9")
# loss, active tokens, separable weight, capacity, sensitivity over baseline, right of 10 prompts
NUMBERS = {
    BASELINE: (3.2, 256.0, 0.31, 60.0, 1.0, 3),
    "entmax:alpha=1.5": (4.9, 21.0, 0.44, 12.0, 0.48, 2),
    "sparsemax": (6.1, 6.0, 0.58, 4.0, 0.32, 1),
    "topk:k=32": (3.21, 31.0, 0.33, 30.0, 0.77, 3),
    "topp:p=0.9": (3.205, 88.0, 0.32, 55.0, 0.89, 3),
}
MANIFEST: dict[str, Any] = {
    "model": {"name": "gpt2-like", "about": "6 layers x 8 heads", "class": "GPT2LMHeadModel", "source": "/home/u/gpt"},
    "text": {"name": "essay.txt", "characters": 53_000},
    "settings": {"length": 512, "queries": 32, "tau": 0.05, "level": 0.95, "needle_decoys": 3},
    "self_check": {"error": 4.2e-6, "tokens": 128},
    "machine": {"threads": 2},
    "windows": [{"length": 512, "index": i, "start": 0, "end": 9} for i in range(8)],
    "seconds": {"total": 61.5},
    "skipped": ["length 512: 8 of 9 windows, because essay.txt has only 4,100 tokens"],
    "made": "2026-01-02T03:04:05+00:00",
}


def wilson(right: int, total: int) -> tuple[float, float, float]:
    """A share with its interval."""
    ends = scipy.stats.binomtest(right, total).proportion_ci(0.95, "wilson")
    return right / total, float(ends.low), float(ends.high)


def row(name: str, **changed: float | None) -> dict[str, Any]:
    """Every number with an interval of some percent around it, unless it is given."""
    loss, active, apart, capacity, ratio, right = NUMBERS.get(name, NUMBERS["topk:k=32"])
    _, low, high = wilson(10 * right, 100)
    known: dict[str, float | None] = {
        "loss": loss, "perplexity": 2.718281828**loss, "loss_change": loss - 3.2, "loss_rise": loss / 3.2 - 1,
        "effective_tokens": active / 8, "active": active, "zeros": 1 - active / 256, "separability": 0.5,
        "separable": apart, "separable_gain": apart - 0.31, "distance_per_token": 1.4, "capacity": capacity,
        "capacity_ratio": capacity / 60, "sensitivity": 0.17 * ratio, "sensitivity_own": 0.17,
        "sensitivity_ratio": ratio, "needle_accuracy": right / 10, "needle_margin": right - 3.5,
        "needle_gain": right / 10 - 0.3,
    }  # fmt: skip
    values: dict[str, Any] = {"normalizer": name}
    for measure, value in known.items():
        assert value is not None
        around = 0.02 * abs(value)
        values |= {measure: value, f"{measure}_low": value - around, f"{measure}_high": value + around}
    values |= {"needle_accuracy_low": low, "needle_accuracy_high": high}
    if name == BASELINE:
        values |= {"needle_gain": None, "needle_gain_low": None, "needle_gain_high": None}
    values |= {"temperature": 2.0, "matched_heads": 1.0, "sensitivity_theory": None, "time_ratio": 1.4}
    return values | {"seconds": 0.2, "extra_megabytes": 9.2, JUMPS: name.startswith("top")} | changed


def table(rows: Sequence[Mapping[str, Any]] | None = None) -> pl.DataFrame:
    return Comparison.frame().of([row(name) for name in NAMES] if rows is None else rows)


def needle(names: Sequence[str] = NAMES, lengths: Sequence[int] = (128, 256, 512)) -> pl.DataFrame:
    """Worse with length, better at the ends."""
    rows = []
    cells: list[tuple[str | None, int | None, float | None]] = [(None, None, None)]
    for kind in KINDS:
        cells += [(kind, None, None), *((kind, length, None) for length in lengths)]
        cells += [(kind, None, depth) for depth in DEPTHS]
    for number, name in enumerate(names):
        for kind, length, depth in cells:
            right = 12 - number - (0 if length is None else length // 128) + (3 if depth in (0.0, 1.0) else 0)
            gain = (None,) * 3 if name == BASELINE else (-number / 20, -number / 20 - 0.1, 0.07)
            rows.append(
                (name, kind, length, depth, 20, *wilson(max(0, right), 20), 0.05 if kind == "needle" else 0.02,
                 *gain, right / 4 - 2, right / 4 - 2.4, right / 4 - 1.7)
            )  # fmt: skip
    return Comparison.frame("needle").of(rows)


def comparison(
    rows: Sequence[Mapping[str, Any]] | None = None, needles: pl.DataFrame | None = None, **manifest: Any
) -> Comparison:
    frame = table(rows)
    return Comparison.of(
        frame, needle(frame["normalizer"].to_list()) if needles is None else needles, MANIFEST | manifest
    )
