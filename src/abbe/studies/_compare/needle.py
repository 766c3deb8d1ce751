"""The table of the needle test: every accuracy stands beside what guessing among the candidates would give."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import torch

from ...measures import bootstrap_interval
from ...words.names import BASELINE
from .._engine.needles.gain import paired_gain, wilson
from .._engine.needles.prompts import Prompt
from .result import NEEDLE_SCHEMA


def needle_table(
    prompts: Sequence[Prompt], margins_of: Mapping[str, Sequence[float]], level: float, resamples: int, seed: int
) -> pl.DataFrame:
    """A row for every normalizer and cell: kind, length and depth, and all of them together where one is null.

    All answered the same prompts; gains are those over the baseline, which has none itself.
    """
    cells, baseline = _cells(prompts), margins_of[BASELINE]
    rows = []
    for name, of_prompts in margins_of.items():
        for key, places in cells.items():
            chance = sum(prompts[place].chance for place in places) / len(places)
            mine, before = ([each[place] for place in places] for each in (of_prompts, baseline))
            numbers = cell_numbers(mine, level, resamples, seed)
            numbers |= {} if name == BASELINE else gain_numbers(before, mine, level)
            kind, length, depth = key
            rows.append(
                {"normalizer": name, "kind": kind, "length": length, "depth": depth, "chance": chance} | numbers
            )
    return pl.DataFrame(rows, schema=NEEDLE_SCHEMA)


Cell = tuple[str | None, int | None, float | None]


def _cells(prompts: Sequence[Prompt]) -> dict[Cell, list[int]]:
    """All; each kind; each kind and length; each kind and depth; each kind, length and depth."""
    cells: dict[Cell, list[int]] = {(None, None, None): []} if prompts else {}
    for place, prompt in enumerate(prompts):
        kind, length, depth = prompt.kind, prompt.length, prompt.depth
        keys: tuple[Cell, ...] = (
            (None, None, None), (kind, None, None), (kind, length, None), (kind, None, depth), (kind, length, depth),
        )  # fmt: skip
        for key in keys:
            cells.setdefault(key, []).append(place)
    return cells


def cell_numbers(of_prompts: Sequence[float], level: float, resamples: int, seed: int) -> dict[str, Any]:
    """Accuracy with a Wilson interval, mean margin with one by resampling prompts."""
    right = sum(margin > 0 for margin in of_prompts)
    low, high = wilson(right, len(of_prompts), level)
    values = torch.tensor(of_prompts, dtype=torch.float64)
    ends = [float(end) for end in bootstrap_interval(values, level, resamples, seed)]
    numbers = [float(values.mean()), *ends]
    margin, margin_low, margin_high = (x if math.isfinite(x) else None for x in numbers)
    return {
        "prompts": len(of_prompts), "accuracy": right / len(of_prompts), "accuracy_low": low, "accuracy_high": high,
        "margin": margin, "margin_low": margin_low, "margin_high": margin_high,
    }  # fmt: skip


def gain_numbers(baseline: Sequence[float], other: Sequence[float], level: float) -> dict[str, float | None]:
    """Accuracy less the baseline's on the same prompts, with its paired interval."""
    before, after = ([margin > 0 for margin in each] for each in (baseline, other))
    return dict(zip(("gain", "gain_low", "gain_high"), paired_gain(before, after, level), strict=True))
