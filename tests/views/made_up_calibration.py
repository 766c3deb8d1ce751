"""Calibrations of made-up numbers, and what is found in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from abbe.results import Estimate
from abbe.studies import Calibration
from abbe.words.finding import Finding

OWN, WORSE = [2.0, 2.2, 2.1], [3.0, 3.2, 3.1]
STAGES = ("baseline", "swapped", "calibrated", "fine-tuned")
MANIFEST: dict[str, Any] = {"held_out": [0], "settings": {"level": 0.95, "resamples": 200, "seed": 0}}


def made_up(tuned: bool) -> Calibration:
    """Two layers of one head each, with another number for every stage."""
    errors = {"error_before": [0.84, 0.56], "error_after": [0.04, 0.03], "error_tuned": [0.07, 0.05]}
    zeros = {"zeros_before": [0.83, 0.82], "zeros_after": [0.22, 0.16], "zeros_tuned": [0.23, 0.15]}
    places = {"layer": [0, 1], "name": ["a", "b"], "head": [0, 0], "spec": ["x", "x"], "energy": [1.0, 2.0]}
    heads = pl.DataFrame(places | errors | zeros, Calibration.frame().schema)
    if not tuned:
        heads = heads.with_columns(pl.lit(None, pl.Float64).alias(name) for name in ("error_tuned", "zeros_tuned"))
    interval = Estimate(18.321, 17.89, 18.752)
    none = Calibration.frame("parameters").of([])
    made = Calibration.of("sparsemax", {stage: [2.0] for stage in STAGES[: 3 + tuned]}, heads, none, MANIFEST)
    losses = tuple(replace(one, loss=interval, over_baseline=interval, gain=interval) for one in made.losses)
    return replace(made, losses=losses, findings=(), manifest={"model": {"name": "made-up"}, "skipped": []})


def found(
    *stages: list[float], level: float = 0.95, heads: pl.DataFrame | None = None, fitted: pl.DataFrame | None = None
) -> tuple[Finding, ...]:
    """With these losses by window: own, swapped, calibrated, and perhaps fine-tuned."""
    losses = dict(zip(STAGES, stages, strict=False))
    heads = heads_with_zeros([0.5], [0.4]) if heads is None else heads
    fitted = parameters("t") if fitted is None else fitted
    manifest: dict[str, Any] = {"held_out": range(len(stages[0]) if stages else 3)}
    manifest |= {"settings": MANIFEST["settings"] | {"level": level}}
    return Calibration.of("sparsemax", losses, heads, fitted, manifest).findings


def twice(*stages: list[float], **more: pl.DataFrame) -> tuple[Finding, ...]:
    """Each list taken twice: six windows are enough for 95 %."""
    return found(*(losses * 2 for losses in stages), **more)


def heads_with_zeros(before: list[float], after: list[float], tuned: list[float] | None = None) -> pl.DataFrame:
    count = len(before)
    numbers = {"energy": [1.0, 3.0][:count], "error_before": [0.4, 0.2][:count], "error_after": [0.2, 0.0][:count]}
    places = {"layer": [0] * count, "name": ["a"] * count, "head": list(range(count)), "spec": ["x"] * count}
    last = {"error_tuned": [0.6, 0.2][:count] if tuned else [None] * count, "zeros_tuned": tuned or [None] * count}
    columns = places | numbers | last | {"zeros_before": before, "zeros_after": after}
    return pl.DataFrame(columns, Calibration.frame().schema)


def parameters(*names: str, heads: int = 2) -> pl.DataFrame:
    """Of some heads, which went from 1.5 to 1 and 1.02."""
    rows = [(0, head, name, 1.5, 1 + head / 50) for head in range(heads) for name in names]
    return Calibration.frame("parameters").of(rows)


# Both heads have become softmax again; with `ALREADY` they were so before.
UNDONE = heads_with_zeros([0.9, 0.7], [0.0, 0.2]).with_columns(error_after=pl.Series([1e-9, 1e-5]))
ALREADY = UNDONE.with_columns(error_before=pl.Series([2e-9, 2e-5]))
