"""Quick studies of capacity, their settings, and results of planted losses."""

from __future__ import annotations

from typing import Any

import tiny_runs
import torch
from inside import Curve, capacity_rules

from abbe.studies import Capacity, capacity

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
