"""report: measure every head of a model over lengths, sizes and temperatures, and say what it means."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text as Words

from ..._errors import AbbeError
from ...models import DeviceLike, DeviceMap, DtypeLike, Loss, Text
from ...results import RUN_COLUMNS, TABLE, Result, Run, read_content, read_table
from ...runs.inputs import REPORT_LENGTHS, FolderLike, ModelLike, Placed, TextLike, TokensLike, settings_for
from ...runs.measuring import at_work, measure_runs
from ...runs.study import study
from ...views import Page, TextTable, View
from ...views.text import plain
from ...words.finding import NOT_LEARNED, NOTICE, Finding, KeyNumber, Step
from ...words.frames import EACH_HEAD, Column, column, frame
from ...words.manifest import (
    for_others,
    in_place,
    in_place_words,
    model_name,
    part_of,
    precision_of,
    text_name,
    without_folder,
)
from ...words.measures import glossary, lengths_in, measure_words, measures_of, usual_size, without_temperature
from ...words.names import BASELINE
from ...words.numbers import interval, many, number, percent
from .alternatives import ALTERNATIVES_FRAME, AlternativesReader
from .answer import Answer, answer, next_steps
from .heads import FAINT, HeadVerdict, growth, head_verdict
from .rules import ADVICE, VERDICTS, Evidence, findings, key_numbers
from .sample import Sample, SampleReader

if TYPE_CHECKING:
    from ...views.charts import Spec
    from ...views.theme import ThemeName

_OVERHEAD = 2.0  # time with these measures over time without
_SAMPLE = "sample.json"
_RESUMED = "what an interrupted run resumes from"
_SCRIPTS = ("page.js", "charts.js", "data.js", "sorting.js", "report_heads.js", "report_tokens.js", "report.js")
_LISTS = ("numbers", "verdicts", "advice", "heads")
_KINDS = ("sharp", "selective", "fading", "blurred", "uniform", "sink", "not measured")


@dataclass(frozen=True, eq=False, kw_only=True)
class Report(Result, study="report", drawn=True):
    """What `report` measured, and what follows from it.

    Attributes:
        table: the table of the run: a row per layer, head, length, size and measure.
        growth: a row for every head: decay exponent with interval, and the lengths at which it crosses its limits.
        floors: a row for every head: the temperature below which its weights become fragile.
        alternatives: a row for every head and alternative normalizer, by renormalising the same logits: an estimate.
        numbers: the five that matter.
        verdicts: what they mean, for the model.
        heads: what every head is.
        advice: what to do about it.
        sample: one window to look at, or None.
        manifest: of the run: on what, how, how long, and what was skipped.
    """

    files: ClassVar[Mapping[str, str]] = {
        _SAMPLE: "the window that the page shows",
        "windows/": f"a part per window: {_RESUMED}",
        "alternatives/": _RESUMED,
        "sample/": _RESUMED,
    }

    table: pl.DataFrame = frame("as in `abbe diagnose`", *RUN_COLUMNS, file=TABLE)
    growth: pl.DataFrame = frame(
        "a head",
        *EACH_HEAD,
        column("decay", float, "exponent with which the largest weight fades as the context grows; high means fast, 1 "
               "is a uniform head", label="decay exponent", interval=True),
        column("uniform_from", pl.Int64, "first measured length at which the entropy is near its ceiling",
               label="uniform from length"),
        column("random_from", pl.Int64, "first measured length at which separability is no better than that of random "
               "sets", label="random from length"),
        column("weight", float, "largest weight at the largest length", label="largest weight"),
        column("faint_at", float, "length at which the largest weight would fall below 0.1 if it kept fading as "
               "measured", label="faint from length"),
        column("half_until", float, "keys among which a query with the head's mean range of logits can give one half "
               "of the weight", label="keys among which one can have half"),
    )  # fmt: skip
    floors: pl.DataFrame = frame(
        "a head",
        *EACH_HEAD,
        column("floor", float, "temperature below which the weights become fragile; null if no measured one is",
               label="fragile below T"),
        column("lowest", float, "lowest temperature measured", label="lowest T measured"),
        column("sensitivity", float, "worst sensitivity at T = 1; 95 % of the queries stay below it"),
        column("ceiling", float, "the proved largest sensitivity at T = 1"),
    )  # fmt: skip
    alternatives: pl.DataFrame = frame(
        ALTERNATIVES_FRAME.rows, *ALTERNATIVES_FRAME.columns, file=ALTERNATIVES_FRAME.file
    )
    numbers: tuple[KeyNumber, ...] = ()
    verdicts: tuple[Finding, ...] = ()
    heads: tuple[HeadVerdict, ...] = ()
    advice: tuple[Finding, ...] = ()
    sample: Sample | None = None
    manifest: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, run: Run, alternatives: pl.DataFrame | None = None, sample: Sample | None = None) -> Report:
        """What the measurements say; nothing is measured here.

        Args:
            run: as `diagnose` gives it.
            alternatives: none were tried if it is None.
            sample: a window to look at.
        """
        alternatives = ALTERNATIVES_FRAME.of([]) if alternatives is None else alternatives
        evidence = Evidence(run.table, alternatives, sample, in_place(run.manifest))
        lengths = evidence.lengths or [0]
        grown = [
            {"layer": place[0], "head": place[1], **growth([replace(head, tokens=length) for length in lengths])}
            for place, head in evidence.heads.items()
        ]
        return cls(
            table=run.table,
            growth=cls.frame("growth").of(grown),
            floors=cls.frame("floors").of(evidence.floors),
            alternatives=alternatives,
            numbers=key_numbers(evidence),
            verdicts=findings(evidence, VERDICTS),
            heads=tuple(head_verdict(place, head) for place, head in evidence.heads.items()),
            advice=findings(evidence, ADVICE),
            sample=sample,
            manifest=run.manifest,
        )

    def __repr__(self) -> str:
        return f"Report({model_name(self.manifest)} on {text_name(self.manifest)}: {self.answer.sentence})"

    @property
    def run(self) -> Run:
        """The measurement itself, as `diagnose` gives it."""
        return Run(self.table, self.manifest)

    @property
    def learned(self) -> bool:
        """False if a verdict says that attention has hardly been learned: then the advice does not apply."""
        return all(finding.topic != NOT_LEARNED for finding in self.verdicts)

    @cached_property
    def answer(self) -> Answer:
        """How selective the attention is, in one sentence with its rule."""
        return answer(self.heads, self.verdicts, self.growth, lengths_in(self.table))

    def next_steps(self) -> tuple[Step, ...]:
        """At most three things to do next, in order of worth, each with its command."""
        if self.sample is None:
            has_loss = part_of(self.manifest, "model").get("kind") == "decoder"
        else:  # whether the model predicts the next token, so that a swap can be judged by its loss
            has_loss = self.sample.loss is not None
        return next_steps(self.answer.topic, self.table, self.alternatives, has_loss, self.manifest)

    # -- Files --------------------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints: all but the table and the sample."""
        return {name: part for name, part in super().as_json().items() if name != "table"}

    def _content(self) -> dict[str, Any]:
        reply = {name: getattr(self.answer, name) for name in ("grade", "topic", "sentence", "rule", "heads")}
        lists = {name: [asdict(part) for part in getattr(self, name)] for name in _LISTS}
        return {"answer": reply | {"steps": list(map(asdict, self.next_steps()))}, "learned": self.learned} | lists

    def _files(self) -> dict[str, bytes | str]:
        sample = None if self.sample is None else self.sample.as_json()
        return super()._files() | {_SAMPLE: json.dumps({"sample": sample}, separators=(",", ":"))}

    @classmethod
    def _read(cls, folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Report:
        """All that follows from the measurements is made again."""
        content = read_content(folder / _SAMPLE, stored)
        try:
            sample = None if content["sample"] is None else Sample.from_json(content["sample"])
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise AbbeError(f"{folder / _SAMPLE} is of another version") from None
        table, alternatives = (
            read_table(folder / declared.file, stored, declared.schema)
            for declared in (cls.frame("table"), cls.frame("alternatives"))
        )
        return cls.of(Run(table, manifest), alternatives, sample)

    # -- What people see ----------------------------------------------------------------------------------------------

    def view(self) -> View:
        """The answer, what to do next, five numbers, verdicts and advice; a page for the details."""
        beside = ("number", "value", "interval, limit, control", "what it says")
        numbers = [(key.name, key.shown, ", ".join(_beside(key)), key.meaning) for key in self.numbers]
        advice = [(finding.topic, finding.sentence) for finding in self.advice]
        advised = "Advice" if self.learned else f"Advice. {NOTICE}"
        return self._view(
            f"How selective is the attention of {model_name(self.manifest)}?",
            " ".join([f"{', '.join(self._measured())}.", precision_of(self.manifest)]).strip(),
            answer=self.answer,
            steps=self.next_steps(),
            findings=self.verdicts,
            heading="Verdict",
            tables=[
                TextTable("Numbers", beside, numbers, on=("card",)),
                TextTable(advised, ("about", "advice"), advice, on=("terminal", "card"), left=("advice",)),
            ],
            page=Page("report.html.jinja", _SCRIPTS, self._page),
            more=[Words(""), Words("Numbers", style="bold"), self._numbers_grid()] if self.numbers else [],
        )

    def _numbers_grid(self) -> Padding:
        """Each number with its interval, limit and control, its meaning below."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(max_width=26)
        grid.add_column()
        for key in self.numbers:
            beside = f"  ({', '.join(_beside(key))})" if _beside(key) else ""
            value = Words.assemble((plain(key.shown), "bold"), (beside, "dim"))
            grid.add_row(Words(plain(key.name)), Group(value, Words(plain(key.meaning), style="dim")))
        return Padding(grid, (0, 0, 0, 2))

    def _charts(self, theme: ThemeName) -> dict[str, Spec]:
        from .charts import figures  # altair belongs to an extra

        return figures(self, self.floors, self.alternatives, self.sample, theme)

    def _measured(self) -> list[str]:
        """What was measured on what: parts of a line, so that a page can isolate the writing direction of each."""
        text, settings = part_of(self.manifest, "text"), part_of(self.manifest, "settings")
        places = self.table.select("layer", "head").drop_nulls().unique()
        parts = [f"{many(places.height, 'head')} in {many(places['layer'].n_unique(), 'layer')}"]
        if lengths := [f"{length:,}" for length in lengths_in(self.table)]:
            listed = f"{', '.join(lengths[:-1])} and {lengths[-1]}" if len(lengths) > 1 else lengths[0]
            parts.append(f"windows of {listed} tokens")
        if text.get("name"):
            parts.append(f"from “{text['name']}”")
        if settings.get("windows"):  # a short text holds fewer than requested
            windows = Counter(window["length"] for window in self.manifest.get("windows") or ())
            counts = list(windows.values()) or [settings["windows"]]
            least, most = min(counts), max(counts)
            parts.append(f"{most} of each length" if least == most else f"{least} to {most} of each length")
        return parts

    def _page(self) -> dict[str, Any]:
        """Values of the template of the page. It is passed on, so it shows no folder of this machine."""
        from ...views.html import both_themes, numbers_of, packed_json, packed_table, plain_rows  # of an extra
        from ...views.theme import THEMES
        from .charts import page_charts

        manifest = for_others(self.manifest)
        names = {name: without_folder(name) for name in self.table["model"].unique().drop_nulls()}
        measures = []
        for words in measures_of(self.table):  # on the page, a measure and its temperature are chosen separately
            family, temperature = without_temperature(words.name)
            at = {"family": family, "family_label": measure_words(family).label, "temperature": temperature}
            measures.append(asdict(words) | at)
        about = {
            "model": model_name(manifest),
            "causal": part_of(manifest, "model").get("kind") == "decoder",
            "measures": measures,
            "shown_size": usual_size(self.table),
            "kinds": _KINDS,
            "layers": [str(name) for name in manifest.get("layers") or ()],
            "heads": [asdict(verdict) | {"numbers": numbers_of(verdict.numbers)} for verdict in self.heads],
            "alternatives": plain_rows(self.alternatives),
            "baseline": BASELINE,
            "columns": {column.name: column.label for column in ALTERNATIVES_FRAME.columns},
        }
        charts = {theme: page_charts(self, self.floors, self.alternatives, theme) for theme in THEMES}
        return {
            "model": model_name(manifest),
            "measured": self._measured(),
            "precision": " ".join(filter(None, (precision_of(manifest), in_place_words(manifest)))),
            "facts": _facts(manifest),
            "numbers": [(key, _beside(key)) for key in self.numbers],
            "advice": [(finding, numbers_of(finding.numbers)) for finding in self.advice],
            "notice": "" if self.learned else NOTICE,
            "heads": self.heads,
            "growth": self._cells("growth"),
            "faint": number(FAINT),
            "floors": self._cells("floors"),
            "alternatives": self.alternatives.height > 0,
            "sample": self.sample is not None,
            "glossary": glossary(self.table),
            "about_data": packed_json(about),
            "table_data": packed_table(self.table.with_columns(pl.col("model").replace(names))),
            "sample_data": packed_json(None if self.sample is None else self.sample.as_json()),
            "chart_data": packed_json(both_themes(charts)),
        }

    def _cells(self, name: str) -> dict[str, list[Any]]:
        """Columns and rows of a table; a cell is a text, with its interval, and the value it is sorted by."""
        columns = self.frame(name).columns

        def cell(row: Mapping[str, Any], of: Column) -> tuple[str, str]:
            value, low, high = (row.get(f"{of.name}{end}") for end in ("", "_low", "_high"))
            ends = f" ({interval(low, high)})" if interval(low, high) else ""
            return number(value, 3) + ends, "" if value is None else str(value)

        rows = [[cell(row, of) for of in columns] for row in getattr(self, name).to_dicts()]
        return {"columns": [of.label for of in columns], "rows": rows}


def _beside(key: KeyNumber) -> list[str]:
    """Interval, limit and control of a number, if known, in its unit."""
    show = percent if key.shown.endswith("%") else lambda value: number(value, 3)
    named = (("interval", interval(key.low, key.high, show)), ("limit", key.limit), ("control", key.control))
    return [f"{name} {end if isinstance(end, str) else show(end)}" for name, end in named if end not in ("", None)]


def _facts(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Details that the manifest holds."""
    model, text, settings = (part_of(manifest, name) for name in ("model", "text", "settings"))
    of_tokens = text.get("characters") is None
    size, error = text.get("tokens" if of_tokens else "characters"), part_of(manifest, "self_check").get("error")
    details: dict[str, Any] = {
        "model": " · ".join(str(part) for part in (model.get("name"), model.get("about"), model.get("class")) if part),
        "text": text.get("name", "")
        if size is None
        else f"{text.get('name', '')}, {size:,} {'tokens' if of_tokens else 'characters'}",
        "queries": f"{settings['queries']} per window" if settings.get("queries") else "",
        "token vectors": settings.get("vectors") or "",
        "normalizer": settings.get("normalizer") or "as in the model",
        "self-check": "" if error is None else f"the model's output was rebuilt within {error:.1e} of its "
        "standard deviation",
        "intervals": f"{settings['level']:.0%}, by resampling windows; few windows make them too narrow (of 95 %: 4 "
        "hold 87 %, 8 hold 93 % of the time)" if settings.get("level") else "",
        "made": manifest.get("made") or "",
    }  # fmt: skip
    return [(name, str(value)) for name, value in details.items() if value]


@study(Report, extra="all")
def report(
    model: ModelLike = "embedded", text: TextLike | None = None, *, tokens: TokensLike | None = None,
    lengths: int | Sequence[int] | None = None,
    windows: int = 8, queries: int | str = 64, sizes: int | Sequence[int] | None = None, vectors: str = "value",
    temperatures: float | Sequence[float] = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 2.0), seed: int = 0,
    level: float = 0.95, resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None,
    loss: Loss | None = None,
    device: DeviceLike | None = None, dtype: DtypeLike | None = None, device_map: DeviceMap | None = None,
    progress: bool = True,
) -> Report:  # fmt: skip
    """How selective every attention head is, where selection breaks down, and what to do about it: one offline page.

    Args:
        model, text, tokens: as for `diagnose`.
        lengths: window lengths in tokens; by default 64, 128, 256, 512 and 1024, as far as the model's context goes.
        windows: how many windows of each length; intervals come from resampling them.
        queries: how many queries per window, one from each of as many equal stretches, or "all".
        sizes: sizes N of the selected set; by default 1, 2, 5, 10, 20, 50 and 100.
        vectors: token vectors of the geometry: "value", "output", "hidden" or "embedding", as for `diagnose`.
        temperatures: T > 0 at which the sensitivity is measured.
        seed: random seed; the same seed gives the same numbers.
        level: coverage of the intervals, in (0, 1).
        resamples: number of bootstrap resamples, >= 1.
        folder: keep the run there, as `open_run` reads it, and the page `report.html` (`abbe.report` writes it);
            finished parts are not measured again.
        tokenizer, loss, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        Five numbers, verdicts on the model and on every head, and advice, each with its rule. High separability and a
        high critical N mean that selected tokens are separable from the rest, many effective tokens and a high decay
        exponent that weight is spread, a high sensitivity that small changes of the logits move it.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Commands:
        abbe report
        abbe report smollm2 --text book.txt --open
        abbe report ./my-model --device auto --dtype bfloat16
        abbe report --each 'checkpoints/*' --text book.txt --engine ray --actors 2
        abbe report ./my-model --lengths 128,512,2048 --figures figures --json

    Examples:
        >>> report = abbe.report("embedded", lengths=32, windows=2, queries=4, folder="report", progress=False)
        >>> [number.name for number in report.numbers]
        ['effective tokens', 'separability of 20 tokens', 'critical N', 'decay exponent', 'worst sensitivity']
        >>> report.verdicts[0].sentence
        '...'
    """
    with at_work(
        Report, model, text, folder, tokenizer, progress, Placed(device, dtype, device_map), tokens, loss
    ) as job:
        settings = settings_for(
            job.model.context, lengths=lengths, usual=REPORT_LENGTHS, windows=windows, queries=queries, sizes=sizes,
            vectors=vectors, temperatures=temperatures, seed=seed, level=level, resamples=resamples,
        )  # fmt: skip
        cut = job.windows(settings)
        alternatives, sample = AlternativesReader(job.model, cut, settings), SampleReader(job.model, cut, settings)
        (measured,) = measure_runs(job, [settings], cut, overhead=_OVERHEAD, beside=(alternatives, sample))
        run = Run(
            measured.run.table,
            {**measured.run.manifest, "given": {"text": None if tokens is not None else _files_given(text)}},
        )
        return Report.of(run, alternatives.table(), sample.sample(job.text))


def _files_given(text: TextLike | None) -> list[str] | None:
    """The files as the user named them, for the commands of the report; None for a text in memory."""
    if text is None:
        return []
    named = [text] if isinstance(text, str | os.PathLike) else [] if isinstance(text, Text) else list(text)
    files = [os.fspath(file) for file in named]
    return files if files and all(file == "-" or os.path.isfile(os.path.expanduser(file)) for file in files) else None
