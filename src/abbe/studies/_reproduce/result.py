"""The result of `reproduce`: the data of every figure, the paper's statements judged, and the times; and its view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import polars as pl
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from ...results import Result, as_parquet, as_text, read_content, read_table
from ...views import TextTable, View
from ...views.text import plain
from ...views.theme import THEMES, ThemeName
from ...views.view import Page
from ...words import finding
from ...words.frames import Frame, column
from ...words.manifest import for_others, model_name, part_of, text_name
from ...words.names import FIGURES
from ...words.numbers import duration, number, percent
from .claims import DRIFT, Answer, Claim, Figure, judge

PAPER_SECONDS = {"2a": 24 * 60, "2b": 37 * 60, "2c": 17 * 3600, "3": 7 * 60, "4": 60}  # its five algorithms, a laptop
QUICK = "A quick look, not a result: few windows, queries and sizes; without --quick the answers may differ."
_MARKS = {  # with the role of its colour on the page, and the style in the terminal
    "holds": ("✓", "good", "green"),
    "does not hold": ("✗", "bad", "yellow"),
    "cannot be judged": ("?", "soft", "dim"),
}
_OTHER_MACHINE = "Not the paper's machine, and perhaps another model and fewer windows."
_STATEMENTS = Frame(
    "a statement of the paper",
    (
        *(column("figure", str, "of the paper, or drift"), column("topic", str, "in a few words")),
        column("answer", str, "holds, does not hold, or cannot be judged"),
        *(column("paper", str, "what it says"), column("measured", str, "what this model shows")),
        column("rule", str, "by which it is judged"),
    ),
)


@dataclass(frozen=True, eq=False)
class Reproduction(Result, study="reproduce", json_file="reproduction.json"):
    """What `reproduce` measured: the data of the figures, the statements judged, and the seconds of each figure.

    Attributes:
        manifest: on what, how, how long, and what was skipped.
        figures: by name.
        claims: statements of the paper, judged.
        seconds: of each figure of the paper, drawing not included.
    """

    figures_in: ClassVar[str] = "figures"
    files: ClassVar[Mapping[str, str]] = {
        "reproduction.json": "statements with their rules, critical N under every reading, settings and times",
        "figures/": "every figure as PNG, SVG and PDF, light and dark",
        "data/": "the numbers behind every figure as CSV and Parquet",
        "runs/": "the full table of every run, by head: what an interrupted run resumes from",
    }

    manifest: Mapping[str, Any]
    figures: Mapping[str, Figure]
    claims: tuple[Claim, ...]
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, figures: Mapping[str, Figure], manifest: Mapping[str, Any], seconds: Mapping[str, float]) -> Self:
        """The statements judged on these figures; nothing is measured here.

        Args:
            figures: by name.
            manifest: on what, how, how long, and what was skipped.
            seconds: of each figure of the paper.
        """
        return cls(manifest, figures, judge(figures), seconds)

    @classmethod
    def frames(cls) -> dict[str, Frame]:
        """The table of statements; those of the figures are described by `Figure`."""
        return {"table": _STATEMENTS}

    def __repr__(self) -> str:
        where = f"{model_name(self.manifest)} on {text_name(self.manifest)}, figures {', '.join(self.figures)}"
        return f"Reproduction({where}: {self.answer})"

    @property
    def answer(self) -> str:
        """How many of the paper's statements hold, in one sentence; it says if this is only a quick look."""
        if not self.claims:
            return "No statement was judged."
        counts: Counter[Answer] = Counter(claim.answer for claim in self.claims)
        no, unknown = counts["does not hold"], counts["cannot be judged"]
        parts = [f"{counts['holds']} of {len(self.claims)} statements hold"]
        parts += [f"{no} {'does' if no == 1 else 'do'} not"] if no else []
        parts += [f"{unknown} cannot be judged"] if unknown else []
        look = f" {QUICK}" if part_of(self.manifest, "settings").get("quick") else ""
        return f"{', '.join(parts)}.{look}"

    @property
    def table(self) -> pl.DataFrame:
        """A row for every statement of the paper: figure, topic, what it says, what this model shows, the answer."""
        return _STATEMENTS.of(asdict(claim) for claim in self.claims)

    # -- Files --------------------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Answer, statements, critical N under every reading, times and manifest."""
        readings = self.figures["2c"].tables.get("readings") if "2c" in self.figures else None
        return {
            "answer": self.answer,
            "claims": [asdict(claim) for claim in self.claims],
            **({} if readings is None else {"critical_n": readings.to_dicts()}),
            "figures": {name: dict(figure.about) for name, figure in self.figures.items()},
            "figure_seconds": dict(self.seconds),
            "manifest": dict(self.manifest),
        }

    def _files(self) -> dict[str, bytes | str]:
        files: dict[str, bytes | str] = {"table.csv": self.table.write_csv(), self.json_file: as_text(self.as_json())}
        for name, figure in self.figures.items():
            for table, rows in figure.tables.items():
                files[f"data/figure-{name}-{table}.csv"] = rows.write_csv()
                files[f"data/figure-{name}-{table}.parquet"] = as_parquet(rows)
        return files

    @classmethod
    def _read(cls, folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Reproduction:
        content = read_content(folder / cls.json_file, stored)
        figures = {}
        for name, about in content["figures"].items():
            paths = sorted((folder / "data").glob(f"figure-{name}-*.parquet"))
            tables = {path.stem.removeprefix(f"figure-{name}-"): read_table(path, stored) for path in paths}
            figures[name] = Figure(name, tables, about)
        claims = tuple(Claim(**claim) for claim in content["claims"])
        return cls(manifest, figures, claims, content["figure_seconds"])

    # -- View ---------------------------------------------------------------------------------------------------------

    def view(self) -> View:
        """The statements, each beside what this model shows; the figures; critical N under every reading; the times.

        A high critical N means that even large sets are selected, not random.
        """
        shown = [self.figures[name] for name in (*FIGURES, DRIFT) if name in self.figures]
        facts, readings, times = self._facts(), self._readings(), self._times()
        all_hold = bool(self.claims) and all(claim.answer == "holds" for claim in self.claims)

        def charts(theme: ThemeName) -> dict[str, Any]:
            from .charts import chart  # altair belongs to an extra

            return {f"figure-{figure.name}": chart(figure, theme) for figure in shown}

        def values() -> dict[str, Any]:
            from ...views.html import as_json, both_themes  # of the extra `report`

            drawn = {theme: {name.removeprefix("figure-"): x for name, x in charts(theme).items()} for theme in THEMES}
            return {
                "model": model_name(self.manifest), "facts": facts, "count": self.answer, "claims": self.claims,
                "marks": _MARKS, "number": number, "figures": shown, "readings": readings, "times": times,
                "charts": as_json(both_themes(drawn)),
            }  # fmt: skip

        return self._view(
            f"Which statements of the paper hold for {model_name(self.manifest)}?",
            *(f"{name}: {value}" for name, value in facts),
            answer=finding.Answer("good" if all_hold else "look", self.answer, "each statement has a rule of its own"),
            more=[line for claim in self.claims for line in _statement_lines(claim)],
            tables=[readings, times, self._shown("", "figure", "topic", "answer", "measured", on=("card",))],
            charts=charts,
            page=Page("reproduce.html.jinja", ("page.js", "charts.js"), values),
        )

    def _facts(self) -> list[tuple[str, str]]:
        """What was measured on what, from the manifest."""
        manifest = for_others(self.manifest)
        model, text, settings, check = (part_of(manifest, x) for x in ("model", "text", "settings", "self_check"))
        heads = next((f.about["heads"] for f in self.figures.values() if f.about.get("heads")), None)
        characters, error, lengths = text.get("characters"), check.get("error"), settings.get("lengths")
        details = {
            "model": [model.get("name"), model.get("about")],
            "text": [text.get("name"), characters and f"{characters:,} characters"],
            "heads": [heads],
            "windows": [
                lengths and f"{', '.join(map(str, lengths))} tokens",
                settings.get("windows") and f"{settings['windows']} of each length",
            ],
            "self-check": [error and f"the model's output was rebuilt within {error:.1e} of its standard deviation"],
        }
        return [(name, ", ".join(str(x) for x in parts if x)) for name, parts in details.items() if any(parts)]

    def _readings(self) -> TextTable:
        """Critical N under every reading at the longest length, for token embeddings."""
        figure = self.figures.get("2c")
        table = None if figure is None else figure.tables.get("readings")
        if table is None or not table.height:
            return TextTable("", (), ())
        chosen = table.filter((pl.col("vectors") == "embedding") & (pl.col("length") == pl.col("length").max()))
        chosen = chosen.sort("level", maintain_order=True)
        rows = {
            reading: [_critical(row) for row in of_reading.iter_rows(named=True)]
            for reading, of_reading in chosen.group_by("expected", "test", maintain_order=True)
        }
        return TextTable(
            f"Critical N under each reading, token embeddings, {int(chosen['length'][0]):,} tokens",
            ("expected", "test of", *(f"level {level:g}" for level in chosen["level"].unique().sort())),
            [[*reading, *cells] for reading, cells in rows.items()],
            "In brackets: the share of the tests that reject at every N. The number is that of the middle test.",
            on=("terminal",),
            left=("test of",),
        )

    def _times(self) -> TextTable:
        rows = [
            (f"Figure {name}", duration(self.seconds[name]), duration(paper))
            for name, paper in PAPER_SECONDS.items()
            if name in self.seconds
        ]
        return TextTable("", ("", "time here", "in the paper"), rows, _OTHER_MACHINE, on=("terminal",))


def _statement_lines(claim: Claim) -> list[RenderableType]:
    """Topic and answer, then what the paper says and what was measured, in full width."""
    mark, _, style = _MARKS[claim.answer]
    where = claim.figure if claim.figure == DRIFT else f"figure {claim.figure}"
    return [
        Text(""),
        Text.assemble((f"{mark} {claim.answer}: ", style), (plain(claim.topic), "bold"), f" ({plain(where)})"),
        Padding(Text(f"paper: {plain(claim.paper)}", style="dim"), (0, 0, 0, 2)),
        Padding(Text(f"here: {plain(claim.measured)}"), (0, 0, 0, 2)),
    ]


def _critical(row: Mapping[str, Any]) -> str:
    """ "12", "none up to 512"; for many tests, in brackets the share that rejects at every size."""
    if row["rejecting"] is None:
        return "not tested"
    critical = f"none up to {row['largest_n']}" if row["critical_n"] is None else number(row["critical_n"])
    share = percent(row["rejecting"]).replace(" ", "\u00a0")  # the unit stays beside its number
    return critical if row["test"] == "head means" else f"{critical} ({share})"
