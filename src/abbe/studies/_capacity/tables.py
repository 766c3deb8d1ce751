"""Tables of a study of capacity, from its curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import torch
from torch import Tensor

from .._shared.truncation import Curve, interval
from .result import CURVE_SCHEMA, GROWTH_SCHEMA, TABLE_SCHEMA
from .settings import CapacitySettings


def allowed_rises(tau: float, layer: int | None, layers: int) -> tuple[float, ...]:
    """tau; for a single layer also its equal share among all layers."""
    return (tau,) if layer is None else tuple(dict.fromkeys((tau, tau / layers)))


def capacity_rows(curves: Sequence[Curve], layers: int, settings: CapacitySettings) -> list[dict[str, Any]]:
    """The whole model first, then its layers."""
    model_first = sorted(curves, key=lambda curve: curve.layer is not None)
    return [row for curve in model_first for row in curve_rows(curve, layers, settings)]


def curve_rows(curve: Curve, layers: int, settings: CapacitySettings) -> list[dict[str, Any]]:
    """N* for every allowed rise."""
    drawn = curve.resampled(settings.resamples, settings.seed)
    rows = []
    for tau in settings.taus:
        for allowed in allowed_rises(tau, curve.layer, layers):
            capacity = curve.capacity(allowed, drawn, settings.level)
            rows.append({
                "layer": curve.layer, "length": curve.length, "way": curve.way, "tau": tau, "allowed": allowed,
                "capacity": capacity.value, "low": capacity.low, "high": capacity.high,
                "share": capacity.value / curve.length,
                "monotone": curve.monotone(allowed), "first": curve.first(allowed), "windows": len(curve.baseline),
            })  # fmt: skip
    return rows


def capacity_table(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame([{**dict.fromkeys(TABLE_SCHEMA), **row} for row in rows], schema=TABLE_SCHEMA)


def curve_table(curves: Sequence[Curve], settings: CapacitySettings) -> pl.DataFrame:
    """Every loss that was evaluated."""
    rows = []
    for curve in curves:
        drawn = curve.resampled(settings.resamples, settings.seed)
        baseline, means = float(curve.baseline.mean()), curve.truncated.mean(-1).tolist()
        for place, (n, loss, rise) in enumerate(zip(curve.sizes, means, curve.rises[:-1].tolist(), strict=True)):
            ends = interval(None if drawn is None else drawn[:, place], settings.level, len(curve.baseline))
            rows.append((curve.layer, curve.length, curve.way, n, loss, baseline, rise, *ends))
    return pl.DataFrame(rows, schema=CURVE_SCHEMA, orient="row")


def growth_table(curves: Sequence[Curve], layers: int, settings: CapacitySettings) -> pl.DataFrame:
    """The exponent of N*, not rounded, in L: of the model and of each layer, where there are two lengths or more."""
    over_lengths: dict[tuple[int | None, str], list[Curve]] = defaultdict(list)
    for curve in curves:
        over_lengths[curve.layer, curve.way].append(curve)
    rows = [
        (layer, way, tau, allowed, *_growth(some, allowed, settings), len(some))
        for (layer, way), some in over_lengths.items()
        if len(some) > 1
        for tau in settings.taus
        for allowed in allowed_rises(tau, layer, layers)
    ]
    return pl.DataFrame(rows, schema=GROWTH_SCHEMA, orient="row")


def _growth(curves: Sequence[Curve], allowed: float, settings: CapacitySettings) -> tuple[float | None, ...]:
    """With its interval: lengths are resampled independently, as they have different windows.

    Rounded up, small N* would stand still or jump by half their size, and so would their intervals.
    """
    lengths = [curve.length for curve in curves]
    value = growth_exponent(torch.stack([curve.crossing(allowed) for curve in curves]), lengths)
    drawn = [curve.resampled(settings.resamples, settings.seed) for curve in curves]
    again = [curve.crossing(allowed, one) for curve, one in zip(curves, drawn, strict=True) if one is not None]
    fewest = min(len(curve.baseline) for curve in curves)
    several = growth_exponent(torch.stack(again, -1), lengths) if len(again) == len(curves) else None
    return float(value), *interval(several, settings.level, fewest)


def growth_exponent(capacities: Tensor, lengths: Sequence[int]) -> Tensor:
    """Least squares of ln N* on ln L: (..., length) -> (...)."""
    x = torch.tensor(lengths, dtype=torch.float64).log()
    x = x - x.mean()
    return (capacities.double().log() @ x) / (x @ x)
