"""The result of `reproduce`: the data of every figure, the paper's statements judged, and the times; and its view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

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

DRIFT = "drift"  # ours: the paper says it in words; computed from the runs of 2a and 2b
PAPER_SECONDS = {"2a": 24 * 60, "2b": 37 * 60, "2c": 17 * 3600, "3": 7 * 60, "4": 60}  # its five algorithms, a laptop
PAPER_SEPARABILITY = (0.70, 0.85)  # its separable share beyond N of about 16
_QUESTIONS = {  # the titles of the charts; the page says how to read them
    "2a": "Does the distance between the selected and the rest grow with the length?",
    "2b": "Does selecting more tokens increase the distance?",
    "2c": "Up to which N do the selected differ from random sets?",
    "3": "How many of the selected tokens are separable from the others?",
    "4": "How much do the weights move when the logits move a little?",
    DRIFT: "Do the weights inside the selected set become uniform?",
}
Answer = Literal["holds", "does not hold", "cannot be judged"]
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

    @property
    def question(self) -> str:
        """That it answers: its title."""
        return _QUESTIONS[self.name]

    @property
    def settings(self) -> str:
        """The known settings in one line."""
        about, parts = self.about, []
        for sign, name in (("L", "length"), ("N", "size")):
            if values := about.get(f"{name}s") or [x for x in [about.get(name)] if x is not None]:
                parts.append(f"{sign} = {values[0]}" + (f" to {values[-1]}" if len(values) > 1 else ""))
        if self.name == DRIFT:
            parts = [f"against N at L = {about.get('length', '?')}, against L at N = {about.get('size', '?')}"]
        for noun in ("head", "window"):
            if isinstance(count := about.get(f"{noun}s"), (int, str)):
                parts.append(f"{count} {noun}{'' if count == 1 else 's'}")
        if isinstance(queries := about.get("queries"), (int, str)):
            counted = {1: "1 query", "all": "all queries"}.get(queries, f"at most {queries} queries")
            parts.append(f"{counted} per window")
        if about.get("more_than"):
            parts.append(f"all with more than {about['more_than']} keys")
        return ", ".join(parts)


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
