"""What `reproduce` gives: the data of every figure, the paper's statements judged, and the times."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import polars as pl

from ..._held import held
from ..._stored import write_json, write_whole

SUMMARY = "reproduction.json"

Answer = Literal["holds", "does not hold", "cannot be judged"]


@dataclass(frozen=True, eq=False)
class Figure:
    """One figure as tidy tables, without a word on how it is drawn.

    Tables, by figure (lengths and sizes in tokens, distances in the units of the vectors, means over all heads; `low`
    and `high` are the ends of an interval over windows and may be null):

    2a "distance": vectors, length, series, value, low, high. Size 5.
    2b "distance": vectors, n, series, value, low, high. The longest length.
       `series` is "selected" (the N keys of largest weight), "random" (random sets of N), "bound" (Theorem 1(1), linear
       form, for the selected), "expected low" and "expected high" (the proved bounds on the mean over random sets; the
       paper calls the low one an upper bound).
    2c "critical": vectors, length, level, critical_n (null: every test rejects), low, high, largest_n (last one tried).
       "tests": vectors, length, n, statistic, p_value. "proportional": vectors, length, n (L/8), value, low, high.
       "readings": vectors, length, level, expected ("random sets" or the "formula" of Theorem 1(2)), test (of "head
       means", at "each query", or of "all queries" of a window), critical_n (the middle one of all tests; null: most
       reject at every size), rejecting (share of the tests that do), largest_n.
    3  "heads": vectors, layer, head, n, value, control. "mean": vectors, n, series ("selected" or "random"), value,
       low, high.
    4  "sensitivity": temperature, step (null for a derivative), direction ("random", "pair" or "worst"), statistic
       ("paper": mean over queries, then the largest head; "mean": over heads, too; "max": the largest row), value.
       "ceilings": temperature, step, true (proved: 1/(2T), for steps lower yet), paper (min of 1/(4T) and sqrt 2).
    drift "by_size": n, series ("selected" or "random"), value, low, high, share (value/ln n). The longest length.
       "by_length": length, series, value, low, high, share. Size 5. Values are divergences from uniform, in nats.
    """

    name: str
    tables: Mapping[str, pl.DataFrame] = field(repr=False)
    about: Mapping[str, Any] = field(default_factory=dict)  # length, sizes, queries and the like, for captions


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, what this model shows, and whether it holds by a rule that is written down."""

    figure: str
    topic: str
    paper: str
    found: str
    rule: str
    answer: Answer
    numbers: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Reproduction:
    """Everything that a page, a table or a test needs."""

    manifest: Mapping[str, Any] = field(repr=False)
    figures: Mapping[str, Figure]
    claims: tuple[Claim, ...] = field(repr=False)
    seconds: Mapping[str, float]  # of each figure of the paper, drawing not included

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write every table of every figure as CSV, and the rest as one JSON file, which holds their checksums."""
        target = Path(folder)
        tables = {
            f"data/figure-{name}-{table}.csv": rows
            for name, figure in self.figures.items()
            for table, rows in figure.tables.items()
        }
        with held(target):
            (target / "data").mkdir(exist_ok=True)
            for file, rows in tables.items():
                write_whole(target / file, rows.write_csv())
            write_json(target / SUMMARY, self.as_json(), files=list(tables))
        return target

    def as_json(self) -> dict[str, Any]:
        """Statements, critical N under every reading, times and manifest."""
        claims = [asdict(claim) for claim in self.claims]
        table = self.figures["2c"].tables.get("readings") if "2c" in self.figures else None
        readings = {} if table is None else {"critical_n": table.to_dicts()}
        return {"claims": claims, **readings, "figure_seconds": dict(self.seconds)} | dict(self.manifest)
