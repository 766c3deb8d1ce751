"""Quick studies of capacity, their settings, and results of planted losses."""

from __future__ import annotations

from typing import Any

import tiny_runs
import torch
from inside import capacity_rules, truncation

from abbe.studies import Capacity, capacity
from abbe.words.finding import Finding

Curve = truncation.Curve

WAYS = ("deletion", "renormalised")
QUICK: dict[str, Any] = {"lengths": [16, 40], "windows": 3, "queries": 8, "resamples": 50, "progress": False}


def made(family: str = "gpt2", **options: Any) -> Capacity:
    return capacity(tiny_runs.model(family), tiny_runs.TEXT, **(QUICK | options))


def asked(**changed: Any) -> dict[str, Any]:
    """Settings; layers at all lengths, unless `layer_lengths` names some."""
    given: dict[str, Any] = {
        "lengths": [16, 40], "taus": [0.01, 0.05], "ways": WAYS, "windows": 3, "layers": True, "layer_windows": 2,
        "queries": 8, "seed": 0, "level": 0.95, "resamples": 200, "targets": "all", "grid": "exact",
    } | changed  # fmt: skip
    return {"layer_lengths": given["lengths"] if given["layers"] else []} | given


def curve_of(
    slopes: list[float],
    length: int = 64,
    way: str = "deletion",
    layer: int | None = None,
    baseline: list[float] | None = None,
) -> Curve:
    """A window's rise at N is its slope over N, relative to its baseline loss: 1, 2, 3, ... if none are given."""
    losses = torch.tensor(baseline or range(1, len(slopes) + 1), dtype=torch.float64)
    sizes = tuple(range(1, length))
    rises = torch.tensor(slopes, dtype=torch.float64) / torch.tensor(sizes).double().unsqueeze(-1)
    return Curve(length, way, layer, length, layer is None, sizes, losses, losses, losses * (1 + rises))


def rows_of(*curves: Curve, of: int = 1, **settings: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = capacity_rules.capacity_rows(curves, of, asked(**settings))
    return rows


def model_row(curve: Curve, tau: float, **settings: Any) -> dict[str, Any]:
    (row,) = rows_of(curve, taus=[tau], **settings)
    return row


def result_of(rows: list[dict[str, Any]], *curves: Curve, of: int = 1, **settings: Any) -> Capacity:
    """A result `of` that many layers, with its findings; curves are for growth."""
    given = asked(**settings)
    tables = capacity_rules.tables(curves, rows, of, given)
    manifest = {"model": {"name": "made-up"}, "text": {"name": "some text"}, "settings": given, "skipped": []}
    return Capacity(**tables, findings=capacity_rules.findings(tables, given), manifest=manifest)


# -- What is found ----------------------------------------------------------------------------------------------------

UP, DOWN, MIXED = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.6, 0.5, 0.4, 0.3, 0.2, 0.1], [0.3, 0.1, 0.5, 0.2, 0.6, 0.25]
EQUAL = [0.5] * 6
ONE: dict[str, Any] = {"ways": ["deletion"], "lengths": [64], "layers": False, "taus": [0.05]}


def by_topic(result: Capacity) -> dict[str, Finding]:
    return {finding.topic: finding for finding in result.findings}


def geometry(capacities: list[float], shares: list[float]) -> Finding:
    """What is said about layers of these capacities and separabilities."""
    settings: dict[str, Any] = {"taus": [0.01], "ways": ["renormalised"], "lengths": [64]}
    rows = [model_row(curve_of([0.19] * 3, way="renormalised"), 0.01)]
    for layer, (needed, share) in enumerate(zip(capacities, shares, strict=True)):
        curve = curve_of([0.01] * 3, way="renormalised", layer=layer)
        row = rows_of(curve, of=len(shares), taus=[0.01])[-1]
        rows.append({**row, "capacity": needed, "separability": share, "separability_n": 8})
    return by_topic(result_of(rows, of=len(shares), **settings))["geometry and function"]


def growing(low: float | None, high: float | None) -> tuple[Finding, ...]:
    """With this interval of the exponent."""
    settings = asked(**(ONE | {"lengths": [64, 128]}))
    rows = [model_row(curve_of([0.19] * 3, length), 0.05) for length in (64, 128)]
    tables = capacity_rules.tables([], rows, 1, settings)
    tables["growth"] = Capacity.frame("growth").of([(None, "deletion", 0.05, 0.05, 0.5, low, high, 2)])
    found: tuple[Finding, ...] = capacity_rules.findings(tables, settings)
    return found


def of_cells(shares: dict[tuple[int, str], list[float]], **changed: Any) -> dict[str, Finding]:
    """By topic, for six layers that need 1, 2, ... keys and have these separabilities at each length and way."""
    settings = {"taus": [0.01, 0.05], "lengths": [64, 128]} | changed
    rows = rows_of(*(curve_of([0.19] * 3, length, way) for length, way in shares), **settings)
    for (length, way), of_layers in shares.items():
        for layer, share in enumerate(of_layers):
            curve = curve_of([0.01 * (layer + 1)] * 3, length, way, layer)
            more = {"separability": share, "separability_n": 8}
            rows += [row | more for row in rows_of(curve, of=6, **settings)]
    return by_topic(result_of(rows, of=6, **settings))


def cells(*shares: list[float]) -> dict[tuple[int, str], list[float]]:
    """At 64 tokens, deletion and renormalised; then at 128."""
    return dict(zip([(length, way) for length in (64, 128) for way in WAYS], shares, strict=True))


def with_a_hole() -> Capacity:
    """One key is fine, two are not."""
    curve = curve_of([0.19] * 3)
    curve.truncated[0] = curve.baseline
    return result_of([model_row(curve, 0.05)], **ONE)


def written(capacity: float, low: float | None, high: float | None, monotone: bool) -> tuple[Finding, ...]:
    row = model_row(curve_of([0.19] * 3), 0.05)
    row |= {"capacity": float(capacity), "low": low, "high": high, "monotone": monotone, "first": 1100}
    return result_of([row], **ONE).findings


def layers_of(windows: int) -> Finding:
    """From layers truncated on this many windows."""
    curves = [curve_of([0.19] * windows), curve_of([0.19] * windows, layer=0)]
    rows = [row | {"separability": 0.5, "separability_n": 8} for row in rows_of(*curves, taus=[0.05])]
    return by_topic(result_of(rows, **(ONE | {"layers": True})))["layers"]
