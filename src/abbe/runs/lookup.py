"""Numbers of a run's table by name: per head, or for all heads together."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from ..results import Estimate, Run
from ..words.finding import Place
from ..words.measures import usual_size

_FINITE = pl.col("value").is_finite()


@dataclass(frozen=True)
class Cell(Estimate):
    """One row of the table; only the value is always there."""

    limit: float | None = None
    control: float | None = None

    @property
    def at_least(self) -> float:
        """The low end of the interval, or the value if there is none."""
        return self.value if self.low is None else self.low


class Lookup:
    """The finite numbers of a run, by measure, length and set size."""

    def __init__(self, run: Run) -> None:
        self.of_heads: dict[tuple[str, int | None, int | None], dict[Place, Cell]] = {}
        self.of_all: dict[tuple[str, int | None, int | None], Cell] = {}
        names = ("layer", "head", "measure", "length", "n", "value", "low", "high", "limit", "control")
        for layer, head, measure, length, n, *numbers in run.table.filter(_FINITE).select(names).iter_rows():
            if layer is None:
                self.of_all[measure, length, n] = Cell(*numbers)
            else:
                self.of_heads.setdefault((measure, length, n), {})[layer, head] = Cell(*numbers)
        self.places: list[Place] = run.table.select("layer", "head").drop_nulls().unique().sort("layer", "head").rows()
        self.lengths = sorted({length for _, length, _ in self.of_heads if length is not None})
        self.longest = self.lengths[-1] if self.lengths else None
        self.sizes = sorted({n for _, length, n in self.of_heads if n is not None and length == self.longest})
        self.size = usual_size(run.table)

    def heads(self, measure: str, length: int | None = None, n: int | None = None) -> dict[Place, Cell]:
        """Every head that has this number."""
        return self.of_heads.get((measure, length, n), {})

    def overall(self, measure: str, length: int | None = None, n: int | None = None) -> Cell | None:
        return self.of_all.get((measure, length, n))
