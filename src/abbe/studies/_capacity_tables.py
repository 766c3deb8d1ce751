"""Tables of a study of capacity, from its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import torch

from ._capacity_curves import Curve
from ._capacity_intervals import growth_exponent, interval, least_whole, whole_interval
from ._capacity_parts import CURVE_SCHEMA, GROWTH_SCHEMA, TABLE_SCHEMA
from ._capacity_settings import CapacitySettings

Beside = Mapping[str, Any]  # columns of separability


def model_row(curve: Curve, tau: float, settings: CapacitySettings) -> dict[str, Any]:
    """N* of the whole model: a whole number; its interval, of whole numbers too, holds those of resampled windows."""
    value = float(least_whole(curve.crossing(tau)))
    drawn = curve.resampled(settings.resamples, settings.seed)
    low, high = whole_interval(
        None if drawn is None else least_whole(curve.crossing(tau, drawn)), settings.level, len(curve.own)
    )
    return _row(curve, tau, tau, value, low, high)


def layer_rows(curve: Curve, layers: int, settings: CapacitySettings) -> list[dict[str, Any]]:
    """N of one layer for every tau and for its equal share of it: read off between the sizes that were tried."""
    drawn = curve.resampled(settings.resamples, settings.seed)
    rows = []
    for tau in settings.taus:
        for allowed in dict.fromkeys((tau, tau / layers)):
            value = float(curve.crossing(allowed))
            ends = interval(None if drawn is None else curve.crossing(allowed, drawn), settings.level, len(curve.own))
            rows.append(_row(curve, tau, allowed, value, *ends))
    return rows


def _row(
    curve: Curve, tau: float, allowed: float, value: float, low: float | None, high: float | None
) -> dict[str, Any]:
    return {
        "layer": curve.layer, "length": curve.length, "way": curve.way, "tau": tau, "allowed": allowed,
        "capacity": value, "low": low, "high": high, "share": value / curve.length,
        "monotone": curve.monotone(allowed), "windows": len(curve.own),
    }  # fmt: skip


def capacity_table(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame([{**dict.fromkeys(TABLE_SCHEMA), **row} for row in rows], schema=TABLE_SCHEMA)


def curve_table(curves: Sequence[Curve], settings: CapacitySettings) -> pl.DataFrame:
    """Every loss that was evaluated."""
    rows = []
    for curve in curves:
        drawn = curve.resampled(settings.resamples, settings.seed)
        own, means = float(curve.own.mean()), curve.truncated.mean(-1).tolist()
        for place, (n, loss, rise) in enumerate(zip(curve.sizes, means, curve.rises.tolist(), strict=True)):
            ends = interval(None if drawn is None else drawn[:, place], settings.level, len(curve.own))
            rows.append((curve.layer, curve.length, curve.way, n, loss, own, rise, *ends))
    return pl.DataFrame(rows, schema=CURVE_SCHEMA, orient="row")


def growth_table(curves: Sequence[Curve], settings: CapacitySettings) -> pl.DataFrame:
    """The exponent of N* in L; lengths are resampled apart, as their windows are others."""
    rows: list[tuple[Any, ...]] = []
    for way in settings.ways:
        of_way = [curve for curve in curves if curve.way == way and curve.layer is None]
        lengths = [curve.length for curve in of_way]
        if len(lengths) < 2:
            continue
        for tau in settings.taus:
            found = torch.stack([least_whole(curve.crossing(tau)) for curve in of_way])
            fewest = min(len(curve.own) for curve in of_way)
            ends = interval(_resampled_growth(of_way, tau, settings), settings.level, fewest)
            rows.append((way, tau, float(growth_exponent(found, lengths)), *ends, len(lengths)))
    return pl.DataFrame(rows, schema=GROWTH_SCHEMA, orient="row")


def _resampled_growth(curves: Sequence[Curve], tau: float, settings: CapacitySettings) -> torch.Tensor | None:
    drawn = [curve.resampled(settings.resamples, settings.seed) for curve in curves]
    if any(one is None for one in drawn):
        return None
    found = [least_whole(curve.crossing(tau, one)) for curve, one in zip(curves, drawn, strict=True)]
    return growth_exponent(torch.stack(found, -1), [curve.length for curve in curves])
