"""Numbers of a run's table by name: per head, or for all heads together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import polars as pl

from ..results import Run
from ..words.finding import Place
from ..words.measures import usual_size


@dataclass(frozen=True)
class Cell:
    """One row of the table; only the value is always there."""

    value: float
    low: float | None
    high: float | None
    limit: float | None
    control: float | None

    @property
    def at_least(self) -> float:
        """The low end of the interval, or the value if there is none."""
        return self.value if self.low is None else self.low


_Key = tuple[str, int | None, int | None]
_NUMBERS = ("value", "low", "high", "limit", "control")


class Lookup:
    """The table of a run as dictionaries."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.of_heads: dict[_Key, dict[Place, Cell]] = {}
        self.of_all: dict[_Key, Cell] = {}
        finite = run.table.filter(pl.col("value").is_finite())
        for row in finite.select("layer", "head", "length", "n", "measure", *_NUMBERS).iter_rows():
            layer, head, length, n, measure = row[:5]
            cell, key = Cell(*row[5:]), (measure, length, n)
            if layer is None:
                self.of_all[key] = cell
            else:
                self.of_heads.setdefault(key, {})[layer, head] = cell

    def heads(self, measure: str, length: int | None = None, n: int | None = None) -> dict[Place, Cell]:
        """Every head that has this number."""
        return self.of_heads.get((measure, length, n), {})

    def overall(self, measure: str, length: int | None = None, n: int | None = None) -> Cell | None:
        return self.of_all.get((measure, length, n))

    @cached_property
    def places(self) -> list[Place]:
        """All heads of the table, in order."""
        heads = self.run.table.select("layer", "head").drop_nulls().unique().sort("layer", "head")
        return list(heads.iter_rows())

    @cached_property
    def lengths(self) -> list[int]:
        """Lengths with a number for some head, ascending."""
        return sorted({length for _, length, _ in self.of_heads if length is not None})

    @property
    def longest(self) -> int | None:
        return self.lengths[-1] if self.lengths else None

    @cached_property
    def sizes(self) -> list[int]:
        """Set sizes measured at the largest length, ascending."""
        return sorted({n for _, length, n in self.of_heads if n is not None and length == self.longest})

    @property
    def size(self) -> int | None:
        return usual_size(self.run.table)
