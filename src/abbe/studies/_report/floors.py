"""How low the temperature of a head may go before its weights become fragile."""

from __future__ import annotations

import math
from statistics import median

import polars as pl

from ...words.finding import Fact
from ...words.thresholds import FRAGILE
from .._engine.lookup import Lookup
from .head_verdicts import value_of

_WORST = "sensitivity_worst_p95"
_SCHEMA = {
    "layer": pl.Int32, "head": pl.Int32, "floor": pl.Float64, "lowest": pl.Float64, "sensitivity": pl.Float64,
    "ceiling": pl.Float64,
}  # fmt: skip


def floors(table: Lookup) -> pl.DataFrame:
    """For every head: the temperature below which 95 % of the queries of a window no longer stay under FRAGILE.

    Between two measured temperatures the sensitivity is taken as a power law. floor is null where even the lowest
    measured temperature (`lowest`) is not fragile; `ceiling` is the proved largest sensitivity at T = 1.
    """
    longest = table.longest
    by_temperature = {t: table.heads(name, longest) for t, name in temperatures(table).items()}
    rows: list[tuple[Fact, ...]] = []
    for place in table.places:
        points = [(t, heads[place].value) for t, heads in sorted(by_temperature.items()) if place in heads]
        at_one = table.heads(_WORST, longest).get(place)
        limit = None if at_one is None else at_one.limit
        rows.append((*place, fragile_below(points), points[0][0] if points else None, value_of(at_one), limit))
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def highest_and_middle(floors: pl.DataFrame) -> tuple[float, float] | None:
    """Of the heads that get fragile; None if none does."""
    known = sorted(floors["floor"].drop_nulls().to_list())
    return (known[-1], median(known)) if known else None


def temperatures(table: Lookup) -> dict[float, str]:
    """Measured temperatures, with the name of the measure at each."""
    names = {name for name, length, _ in table.of_heads if name.partition("@")[0] == _WORST and length == table.longest}
    return {float(name.partition("@T=")[2] or 1): name for name in names}


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
