"""The result of `reproduce`: the data of every figure, the paper's statements judged, and the times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import polars as pl

from ...results import Result, as_parquet, as_text, read_content, read_table
from ...words.manifest import model_name, part_of, text_name

SUMMARY = "reproduction.json"

Answer = Literal["holds", "does not hold", "cannot be judged"]
QUICK = "A quick look, not a result: few windows, queries and sizes; without --quick the answers may differ."


@dataclass(frozen=True, eq=False)
class Figure:
    """One figure as tidy tables, independent of how it is drawn.

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

    Attributes:
        name: of the figure in the paper.
        tables: by name.
        about: length, sizes, queries and the like, for captions.
    """

    name: str
    tables: Mapping[str, pl.DataFrame] = field(repr=False)
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, what this model shows, and whether it holds by a written rule.

    Attributes:
        figure: that it belongs to.
        topic: in a few words.
        paper: what the paper says.
        measured: what this model shows.
        rule: by which it is judged.
        answer: "holds", "does not hold" or "cannot be judged".
        numbers: that the rule looks at.
    """

    figure: str
    topic: str
    paper: str
    measured: str
    rule: str
    answer: Answer
    numbers: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Reproduction(Result):
    """What `reproduce` measured: the data of the figures, the statements judged, and the seconds of each figure.

    Attributes:
        manifest: on what, how, how long, and what was skipped.
        figures: by name.
        claims: statements of the paper, judged.
        seconds: of each figure of the paper, drawing not included.
    """

    study: ClassVar[str] = "reproduce"
    page: ClassVar[str] = "reproduce.html"
    figures_in: ClassVar[str] = "figures"

    manifest: Mapping[str, Any]
    figures: Mapping[str, Figure]
    claims: tuple[Claim, ...]
    seconds: Mapping[str, float]

    def __repr__(self) -> str:
        where = f"{model_name(self.manifest)} on {text_name(self.manifest)}, figures {', '.join(self.figures)}"
        return f"Reproduction({where}: {self.answer})"

    @property
    def answer(self) -> str:
        """How many of the paper's statements hold, in one sentence; it says if this is only a quick look."""
        if not self.claims:
            return "No statement was judged."
        counts: Counter[Answer] = Counter(claim.answer for claim in self.claims)
        parts = [f"{counts['holds']} of {len(self.claims)} statements hold"]
        if counts["does not hold"]:
            parts.append(f"{counts['does not hold']} {'does' if counts['does not hold'] == 1 else 'do'} not")
        if counts["cannot be judged"]:
            parts.append(f"{counts['cannot be judged']} cannot be judged")
        look = f" {QUICK}" if part_of(self.manifest, "settings").get("quick") else ""
        return f"{', '.join(parts)}.{look}"

    @property
    def table(self) -> pl.DataFrame:
        """A row for every statement of the paper: figure, topic, what it says, what this model shows, the answer."""
        columns = ("figure", "topic", "answer", "paper", "measured", "rule")
        rows = [[getattr(claim, name) for name in columns] for claim in self.claims]
        return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row")

    def _files(self) -> dict[str, bytes | str]:
        """Every table of every figure as CSV and Parquet, and the rest as one JSON file."""
        files: dict[str, bytes | str] = {SUMMARY: as_text(self.as_json())}
        for name, figure in self.figures.items():
            for table, rows in figure.tables.items():
                files[f"data/figure-{name}-{table}.csv"] = rows.write_csv()
                files[f"data/figure-{name}-{table}.parquet"] = as_parquet(rows)
        return files

    def as_json(self) -> dict[str, Any]:
        """Answer, statements, critical N under every reading, times and manifest."""
        claims = [asdict(claim) for claim in self.claims]
        table = self.figures["2c"].tables.get("readings") if "2c" in self.figures else None
        readings = {} if table is None else {"critical_n": table.to_dicts()}
        about = {name: dict(figure.about) for name, figure in self.figures.items()}
        seconds = {"figure_seconds": dict(self.seconds)}
        return {
            "answer": self.answer,
            "claims": claims,
            **readings,
            "figures": about,
            **seconds,
            "manifest": dict(self.manifest),
        }


def opened_reproduction(folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Reproduction:
    content = read_content(folder / SUMMARY, stored)
    figures = {}
    for name, about in content["figures"].items():
        start = f"figure-{name}-"
        tables = {
            path.stem.removeprefix(start): read_table(path, stored)
            for path in sorted((folder / "data").glob(f"{start}*.parquet"))
        }
        figures[name] = Figure(name, tables, about)
    claims = tuple(Claim(**claim) for claim in content["claims"])
    return Reproduction(manifest, figures, claims, content["figure_seconds"])
