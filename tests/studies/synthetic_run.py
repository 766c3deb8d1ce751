"""Runs with known answers: every head's numbers are given, the rest of the table follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from abbe.results import SCHEMA, Run

LENGTHS = (64, 1024)
SIZES = (1, 5, 20, 100)
NUMBERS = ("value", "low", "high", "limit", "control")
Numbers = Mapping[str, float | None]
# A selective head at 1,024 tokens, with 500 keys in sight. A number is a value, or value, low, high, limit, control.
USUAL: dict[str, Any] = {
    "entropy": (2.0, 1.9, 2.1, 6.0, None),
    "effective_tokens": (8.0, 7.5, 8.5, 500.0, None),
    "max_weight": (0.4, 0.38, 0.42, 0.9, 0.002),
    "logit_range": (10.0, 9.0, 11.0, 40.0, None),
    "sink_mass": (0.01, 0.005, 0.02, 0.9, 0.002),
    "decay_exponent": (0.2, 0.15, 0.25, None, 1.0),
    "separability": (0.7, 0.65, 0.75, None, 0.1),
    "distance": (5.0, 4.0, 6.0, 9.0, 1.0),
    "top_mass": {1: 0.4, 5: 0.7, 20: 0.92, 100: 0.99},
    "sensitivity_worst_mean": (0.2, 0.19, 0.21, 0.5, None),
    "sensitivity_worst_p95": {0.1: 4.0, 0.5: 0.8, 1.0: 0.3},
}


def row(place: tuple[int, int] | None, length: int | None, n: int | None, measure: str, numbers: Any) -> dict[str, Any]:
    given = numbers if isinstance(numbers, tuple) else (numbers, None, None, None, None)
    layer, head = place or (None, None)
    values = {"model": "made up", "layer": layer, "head": head, "length": length, "n": n, "measure": measure}
    return values | dict(zip(NUMBERS, given, strict=True))


def head_rows(place: tuple[int, int] | None, facts: Mapping[str, Any], length: int) -> Iterable[dict[str, Any]]:
    for measure, numbers in facts.items():
        if numbers is None:
            continue
        if measure == "decay_exponent":
            if length == LENGTHS[-1]:
                yield row(place, None, None, measure, numbers)
        elif measure in ("separability", "distance"):
            for n in SIZES:
                alone = n == 1 and measure == "separability"
                yield row(place, length, n, measure, (1.0, 1.0, 1.0, None, 1.0) if alone else numbers)
        elif measure == "top_mass":
            for n, mass in numbers.items():
                yield row(place, length, n, measure, mass)
        elif isinstance(numbers, Mapping):
            for t, value in numbers.items():
                name = measure if t == 1 else f"{measure}@T={t:g}"
                yield row(place, length, None, name, (value, None, None, 0.5 / t, None))
        else:
            yield row(place, length, None, measure, numbers)


def made_run(
    heads: Sequence[Mapping[str, Any]],
    overall: Mapping[str, Any] | None = None,
    p_values: Mapping[int, float] | None = None,
    critical: tuple[float | None, ...] | None = None,
    at_64: Mapping[int, Mapping[str, Any]] | None = None,
    more: Sequence[dict[str, Any]] = (),
) -> Run:
    """Heads of one layer, each as changes of USUAL; `at_64` changes heads at the shorter length alone."""
    rows: list[dict[str, Any]] = []
    for length in LENGTHS:
        for index, given in enumerate(heads):
            changed = (at_64 or {}).get(index, {}) if length == 64 else {}
            rows += head_rows((0, index), USUAL | given | changed, length)
        rows += head_rows(None, USUAL | (overall or {}), length)
    tests = dict.fromkeys(SIZES, 1e-09) if p_values is None else p_values
    for n, p in tests.items():
        rows += [row(None, 1024, n, "ks_p_value", p), row(None, 1024, n, "ks_statistic", 0.9)]
    rows.append(row(None, 1024, None, "critical_n@0.01", critical or (None,) * 5))
    return Run(pl.DataFrame([*rows, *more], schema=SCHEMA), MANIFEST)


MANIFEST: dict[str, Any] = {
    "model": {"name": "made up", "about": "no model at all"},
    "text": {"name": "no text", "characters": 0},
    "settings": {"lengths": list(LENGTHS), "windows": 8, "queries": 64, "sizes": list(SIZES), "vectors": "value"},
    "self_check": {"error": 1e-6, "tokens": 128},
    "skipped": [],
}


def alternatives(rows: Sequence[tuple[Any, ...]]) -> pl.DataFrame:
    """(head, normalizer, separable, gain, gain_low, output_change)."""
    names = ("head", "normalizer", "separable", "gain", "gain_low", "output_change")
    schema = dict.fromkeys(names, pl.Float64) | {"head": pl.Int32, "normalizer": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(layer=pl.lit(0, pl.Int32))
