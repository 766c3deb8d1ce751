"""Tables of a study of capacity, from its curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import torch
from torch import Tensor

from .._engine.capacity.curve import Curve
from .._engine.capacity.intervals import interval
from .result import CURVE_SCHEMA, GROWTH_SCHEMA, TABLE_SCHEMA
from .settings import CapacitySettings


def allowed_rises(tau: float, layers: int) -> tuple[float, ...]:
    """Of a layer: tau, and its equal share among so many layers."""
    return tuple(dict.fromkeys((tau, tau / layers)))


def capacity_rows(curves: Sequence[Curve], layers: int, settings: CapacitySettings) -> list[dict[str, Any]]:
    """The whole model first, then its layers."""
    of_model = [curve for curve in curves if curve.layer is None]
    of_layers = [curve for curve in curves if curve.layer is not None]
    return [row for curve in (*of_model, *of_layers) for row in curve_rows(curve, layers, settings)]


def curve_rows(curve: Curve, layers: int, settings: CapacitySettings) -> list[dict[str, Any]]:
    """N* for every tau; of one layer for its equal share of it, too."""
    drawn = curve.resampled(settings.resamples, settings.seed)
    rows = []
    for tau in settings.taus:
        for allowed in (tau,) if curve.layer is None else allowed_rises(tau, layers):
            value, (low, high) = float(curve.needed(allowed)), curve.ends(allowed, drawn, settings.level)
            rows.append({
                "layer": curve.layer, "length": curve.length, "way": curve.way, "tau": tau, "allowed": allowed,
                "capacity": value, "low": low, "high": high, "share": value / curve.length,
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
    rows: list[tuple[Any, ...]] = []
    for (layer, way), some in _over_lengths(curves).items():
        for tau in settings.taus if len(some) > 1 else ():
            rows += [
                (layer, way, tau, allowed, *_growth(some, allowed, settings), len(some))
                for allowed in ((tau,) if layer is None else allowed_rises(tau, layers))
            ]
    return pl.DataFrame(rows, schema=GROWTH_SCHEMA, orient="row")


def _over_lengths(curves: Sequence[Curve]) -> dict[tuple[int | None, str], list[Curve]]:
    """By layer and way, in the order of the curves."""
    by_place = defaultdict(list)
    for curve in curves:
        by_place[curve.layer, curve.way].append(curve)
    return by_place


def _growth(curves: Sequence[Curve], allowed: float, settings: CapacitySettings) -> tuple[float | None, ...]:
    """With its interval: lengths are resampled apart, as their windows are others.

    Small N* rounded up would stand still, or jump by half of themselves, and so would their intervals.
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
