"""Growth with the context: how fast a head's largest weight fades, and the lengths at which it crosses its limits."""

from __future__ import annotations

import math

import polars as pl

from ...words.finding import Fact, Place
from ...words.thresholds import FAINT, NEAR_UNIFORM
from .._engine.lookup import Cell, Lookup
from .head_verdicts import no_better_than_random, share_of_limit, value_of

_FAR = 100.0  # times the largest length: farther nobody should extrapolate
_MOST_KEYS = 1e9  # longer than any context: a larger number says only that the spread is no limit
_SCHEMA = {
    "layer": pl.Int32, "head": pl.Int32, "decay": pl.Float64, "decay_low": pl.Float64, "decay_high": pl.Float64,
    "uniform_from": pl.Int64, "random_from": pl.Int64, "weight": pl.Float64, "faint_at": pl.Float64,
    "half_until": pl.Float64,
}  # fmt: skip


def growth(table: Lookup) -> pl.DataFrame:
    """For every head: how fast its largest weight fades, and the lengths at which it crosses its limits.

    uniform_from, random_from: the first measured length at which its entropy is near the ceiling, or its separability
    no better than that of random sets. faint_at: where its largest weight would fall below 0.1 if it kept fading as
    measured (an extrapolation, given up to 100 times the largest length). half_until: a query whose logits have the
    mean range R of this head can give one key half of the weight among at most so many keys, 1 + e^R, by the tight
    bound 1/(1 + (n - 1) e^-R); given up to 10^9. Other queries of the head have other ranges.
    """
    rows = [_growth_row(table, place) for place in table.places]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def _growth_row(table: Lookup, place: Place) -> tuple[Fact, ...]:
    decay = table.heads("decay_exponent").get(place)
    weight = table.heads("max_weight", table.longest).get(place)
    spread = table.heads("logit_range", table.longest).get(place)
    uniform = next((length for length in table.lengths if _uniform_at(table, place, length)), None)
    random = next((length for length in table.lengths if _random_at(table, place, length)), None)
    return (
        *place,
        value_of(decay),
        None if decay is None else decay.low,
        None if decay is None else decay.high,
        uniform,
        random,
        value_of(weight),
        faint_at(weight, decay, table.longest),
        None if spread is None or weight is None or weight.limit is None else keys_for_half(spread.value),
    )


def _uniform_at(table: Lookup, place: Place, length: int) -> bool:
    return (share_of_limit(table.heads("entropy", length).get(place)) or 0) >= NEAR_UNIFORM


def _random_at(table: Lookup, place: Place, length: int) -> bool:
    return no_better_than_random(table.heads("separability", length, table.size).get(place))


def faint_at(weight: Cell | None, decay: Cell | None, longest: int | None) -> float | None:
    """w(L) = w (L/longest)^-gamma falls below FAINT at this L; None if gamma is not surely above 0, or L too far."""
    if weight is None or decay is None or longest is None or decay.at_least <= 0:
        return None
    times = math.log(weight.value / FAINT) / decay.value  # the logarithm
    return float(round(longest * math.exp(times))) if times <= math.log(_FAR) else None


def keys_for_half(spread: float) -> float | None:
    keys = math.floor(1 + math.exp(min(spread, 100)))
    return keys if keys <= _MOST_KEYS else None
