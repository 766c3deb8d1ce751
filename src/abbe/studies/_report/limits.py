"""Where every head crosses its limits: the lengths at which it fades, the temperature below which it is fragile."""

from __future__ import annotations

import math
from statistics import median

import polars as pl

from ...words.finding import Fact, Place
from ...words.thresholds import FAINT, FRAGILE, NEAR_UNIFORM
from .._engine.lookup import Cell, Lookup
from .head_verdicts import no_better_than_random, share_of_limit, value_of

_WORST = "sensitivity_worst_p95"
_FAR = 100.0  # times the largest length: farther nobody should extrapolate
_MOST_KEYS = 1e9  # longer than any context: a larger number says only that the spread is no limit
GROWTH_SCHEMA = {
    "layer": pl.Int32, "head": pl.Int32, "decay": pl.Float64, "decay_low": pl.Float64, "decay_high": pl.Float64,
    "uniform_from": pl.Int64, "random_from": pl.Int64, "weight": pl.Float64, "faint_at": pl.Float64,
    "half_until": pl.Float64,
}  # fmt: skip
FLOORS_SCHEMA = {
    "layer": pl.Int32, "head": pl.Int32, "floor": pl.Float64, "lowest": pl.Float64, "sensitivity": pl.Float64,
    "ceiling": pl.Float64,
}  # fmt: skip


def growth(table: Lookup) -> pl.DataFrame:
    """For every head: how fast its largest weight fades, and the lengths at which it crosses its limits.

    uniform_from, random_from: the first measured length at which its entropy is near the ceiling, or its separability
    no better than that of random sets. faint_at: where its largest weight would fall below 0.1 if it kept fading as
    measured (an extrapolation, given up to 100 times the largest length). half_until: the largest number of keys among
    which a query with this head's mean logit range R can give one key half of the weight, 1 + e^R, by the tight
    bound 1/(1 + (n - 1) e^-R); given up to 10^9. Other queries of the head have other ranges.
    """
    rows = [_growth_row(table, place) for place in table.places]
    return pl.DataFrame(rows, schema=GROWTH_SCHEMA, orient="row")


def _growth_row(table: Lookup, place: Place) -> tuple[Fact, ...]:
    decay = table.heads("decay_exponent").get(place)
    weight = table.heads("max_weight", table.longest).get(place)
    spread = table.heads("logit_range", table.longest).get(place)
    uniform = (length for length in table.lengths if _is_uniform(table, place, length))
    random = (length for length in table.lengths if _is_random(table, place, length))
    return (
        *place,
        *((None,) * 3 if decay is None else (decay.value, decay.low, decay.high)),
        next(uniform, None),
        next(random, None),
        value_of(weight),
        faint_at(weight, decay, table.longest),
        None if spread is None or weight is None or weight.limit is None else keys_for_half(spread.value),
    )


def _is_uniform(table: Lookup, place: Place, length: int) -> bool:
    return (share_of_limit(table.heads("entropy", length).get(place)) or 0) >= NEAR_UNIFORM


def _is_random(table: Lookup, place: Place, length: int) -> bool:
    return no_better_than_random(table.heads("separability", length, table.size).get(place))


def faint_at(weight: Cell | None, decay: Cell | None, longest: int | None) -> float | None:
    """w(L) = w (L/longest)^-gamma falls below FAINT at this L; None if gamma is not surely above 0, or L too far."""
    if weight is None or decay is None or longest is None or decay.at_least <= 0:
        return None
    log_times = math.log(weight.value / FAINT) / decay.value
    return float(round(longest * math.exp(log_times))) if log_times <= math.log(_FAR) else None


def keys_for_half(spread: float) -> float | None:
    keys = math.floor(1 + math.exp(min(spread, 100)))
    return keys if keys <= _MOST_KEYS else None


def floors(table: Lookup) -> pl.DataFrame:
    """For every head: the temperature below which 95 % of the queries of a window no longer stay under FRAGILE.

    Between two measured temperatures the sensitivity is taken as a power law. floor is null where even the lowest
    measured temperature (`lowest`) is not fragile; `ceiling` is the proved largest sensitivity at T = 1.
    """
    names = {name for name, length, _ in table.of_heads if name.partition("@")[0] == _WORST and length == table.longest}
    by_temperature = {float(name.partition("@T=")[2] or 1): table.heads(name, table.longest) for name in names}
    rows: list[tuple[Fact, ...]] = []
    for place in table.places:
        points = [(t, heads[place].value) for t, heads in sorted(by_temperature.items()) if place in heads]
        at_one = table.heads(_WORST, table.longest).get(place)
        limit = None if at_one is None else at_one.limit
        rows.append((*place, fragile_below(points), points[0][0] if points else None, value_of(at_one), limit))
    return pl.DataFrame(rows, schema=FLOORS_SCHEMA, orient="row")


def fragile_below(points: list[tuple[float, float]]) -> float | None:
    """Where the sensitivity, from low to high temperature, was last at FRAGILE or above; None if it never was."""
    above = [i for i, (_, value) in enumerate(points) if value >= FRAGILE]
    if not above:
        return None
    t, value = points[above[-1]]
    if above[-1] + 1 == len(points):
        return t
    after, less = points[above[-1] + 1]
    if less <= 0:
        return t
    share = math.log(value / FRAGILE) / math.log(value / less)
    return float(t * (after / t) ** share)


def highest_and_median(floors: pl.DataFrame) -> tuple[float, float] | None:
    """Of the heads that become fragile; None if none does."""
    known = sorted(floors["floor"].drop_nulls().to_list())
    return (known[-1], median(known)) if known else None
