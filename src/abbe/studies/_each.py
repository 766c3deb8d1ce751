"""report_each: the reports of many models or checkpoints, each in its folder, and one table and page above them."""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

import polars as pl
from rich.console import Console

from .._errors import AbbeError
from .._files import CannotWrite, read_json, write_json
from .._lazy import has
from ..models import PULLABLE
from ..results import Result, read_manifest
from ..runs.executors import Local, current
from ..runs.inputs import as_folder
from ..runs.measuring import study_facts
from ..runs.study import study
from ..runs.watch import Watch
from ..views import View
from ..views.text import plain
from ..words.frames import column, frame
from ..words.manifest import part_of, without_folder
from ..words.numbers import many
from ._report.study import Report, report

if TYPE_CHECKING:
    from ..views.charts import Spec
    from ..views.theme import ThemeName

_FAILED = "failed"  # folder with the reasons why models could not be measured
_MEANS = "Means over all heads at the largest length"
_ANSWERED = pl.col("answer").is_not_null()
_NUMBERS = (
    column("effective_tokens", float, "of a query, at the largest length", interval=True),
    column("separability", float, "of 20 tokens", share=True, interval=True),
    column("critical_n", float, "first size at which selection looks random; null if every size differs",
           label="critical N", interval=True),
    column("decay", float, "exponent with which the largest weight fades", label="decay exponent", interval=True),
    column("sensitivity", float, "worst sensitivity", label="worst sensitivity", interval=True),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Reports(Result, study="report --each", page="index.html", json_file=""):
    """The result of `report_each`.

    Attributes:
        table: a row per model in the given order: its answer and the five numbers of its report with their intervals,
            the folder of the report within this one, and in `skipped` why there is none.
        manifest: as for every study; `models` lists the requested models.
    """

    files: ClassVar[Mapping[str, str]] = {
        "MODEL/": "the report of each model, itself a run folder",
        "failed/": "why models could not be measured",
    }

    table: pl.DataFrame = frame(
        "a model",
        column("model", str, "name of the model"),
        column("folder", str, "of its report, within this one", label="model"),
        *(column("grade", str, "good, look or bad"), column("answer", str, "the first sentence of its report")),
        *_NUMBERS,
        *(column("seconds", float, "its report took"), column("skipped", str, "why there is no report")),
        file="models.parquet",
    )
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        answered = self.table.filter(_ANSWERED).height
        return f"Reports({many(self.table.height, 'model')}, {answered} measured: {', '.join(self.table['model'])})"

    def view(self) -> View:
        """The answer per model, then its key numbers with intervals; on the page every name links to its report."""
        rows, terse = self.table.filter(_ANSWERED), ("terminal", "card")
        of = "" if len(rows) == len(self.table) else f" of {len(self.table)}"
        question = f"How selective is the attention of {len(rows)}{of} {'model' if len(self.table) == 1 else 'models'}?"
        bare, whole = [replace(x, interval=False) for x in _NUMBERS], ("separability", "critical N")
        brief, full = f"{_MEANS}; intervals are on the page.", f"{_MEANS}, with their intervals."
        return self._view(
            question,
            "Every model has its own report, in a folder next to the index page.",
            tables=[
                self._shown("Answers", "folder", "answer", rows=rows, on=terse),
                self._shown("Numbers", "folder", *bare, rows=rows, note=brief, on=terse, whole=whole),
                self._shown("Models", _LINK, *_NUMBERS, "answer", rows=rows, note=full, on=("page",)),
            ],
            charts=lambda theme: {"models": self._chart(question, theme)},
        )

    def _chart(self, question: str, theme: ThemeName) -> Spec:
        """A panel per number, a point per model in the given order, with its interval."""
        from ..views import charts  # of an extra
        from ..views.theme import THEMES

        rows = [row | {"model": plain(str(row["folder"]))} for row in charts.rows_of(self.table.filter(_ANSWERED))]
        x = charts.names_axis("model", None, [row["model"] for row in rows], labelLimit=110)
        panels, colour = [], THEMES[theme].selected
        for number in _NUMBERS:
            name, low, high = number.names
            if present := [row for row in rows if row[name] is not None]:
                y = charts.linear_axis(name, number.label, charts.numbers(present, name, low, high))
                plot = charts.Plot(x, y, {"model": "", name: number.label, low: "", high: ""})
                plot.ends(present, low, high, color=colour, strokeWidth=1.5, opacity=1)
                plot.line(present, color=colour, strokeWidth=1, opacity=0.5).dots(present, color=colour, size=45)
                panels.append(plot.panel(number.label))
        about = ["means over all heads at the largest length; bars: intervals from resampling windows"]
        return charts.finished(panels, question, about, theme, columns=3, independent=["x", "y"])


def _link(row: Mapping[str, Any]) -> str:
    if not has("report"):  # there is no page to link from
        return str(row["folder"])
    from markupsafe import Markup  # of that extra

    return Markup('<a href="{}/report.html"><bdi>{}</bdi></a>').format(quote(row["folder"]), row["folder"])


_LINK = ("model", _link)


@study(Reports, extra="all", command="report --each")
def report_each(
    models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    text: Any = None,
    *,
    folder: str | os.PathLike[str],
    progress: bool = True,
    **options: Any,
) -> Reports:
    """How do many models or checkpoints compare, measured on the same text?

    Within `on_ray` they are measured side by side. A model that cannot be measured is listed with the reason, and the
    others continue; finished reports are not measured again.

    Args:
        models: names or folders, or a pattern such as "checkpoints/*".
        text: file or files, "-" for standard input, a `Text`, the text itself, or None for the sample that comes with
            abbe.
        folder: for one folder per model and the index page.
        progress: show cost and a bar on standard error.
        options: as for `report`.

    Returns:
        A row per model: its answer and the five numbers of its report, high and low as for `report`.

    Examples:
        >>> reports = abbe.report_each(["embedded"], folder="each", lengths=32, windows=2, queries=4, progress=False)
        >>> reports.table["model"].to_list()
        ['embedded']
    """
    places = _folders(_listed(models))
    root = as_folder(folder)
    assert root is not None
    started = time.perf_counter()
    _measure(places, root, text, options, progress)
    rows = [_row(model, root / name, root / _FAILED / f"{name}.json") for name, model in places.items()]
    if not any(row["answer"] for row in rows):
        raise AbbeError(f"no model could be measured; the first one: {rows[0]['skipped']}")
    settings = {name: x if isinstance(x, str | int | float | None) else str(x) for name, x in options.items()}
    manifest = study_facts(Reports.study, settings) | {
        "model": {"name": f"{len(rows)} models"},
        "models": [row["model"] for row in rows],
        "text": {},
        "self_check": {},
        "skipped": [f"{row['model']}: {row['skipped']}" for row in rows if row["skipped"]],
        "seconds": {"total": round(time.perf_counter() - started, 3)},
        "finished": True,
    }
    return Reports(Reports.frame().of(rows), manifest)


def _listed(models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Folders as given; matches of a pattern by name, numbers by value, so that step 900 comes before step 1000."""
    if not isinstance(models, str | os.PathLike):
        if not models:
            raise AbbeError("models is empty: give names or folders, or a pattern such as 'checkpoints/*'")
        return [os.fspath(model) for model in models]
    pattern = os.fspath(models)
    found = glob.glob(os.path.expanduser(pattern), recursive=True)
    listed = [path for path in found if path.endswith(".gguf") or Path(path, "config.json").is_file()]
    if not listed and pattern not in ("embedded", *PULLABLE):
        raise AbbeError(f"no folder with config.json and no .gguf file matches {pattern!r}")
    return sorted(listed, key=_by_number) or [pattern]


def _by_number(name: str) -> list[Any]:
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", name)]


def _folders(models: Sequence[str]) -> dict[str, str]:
    """A unique folder name per model: as much of the end of its path as necessary, whatever the order of the models."""
    paths = [Path(os.path.abspath(model)).parts if os.path.exists(model) else (model,) for model in models]
    names = [""] * len(paths)
    for length in range(1, max(map(len, paths)) + 1):
        names = [re.sub(r"[^\w.-]", "-", "-".join(path[-length:])).strip(".-") or "model" for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    folders: dict[str, str] = {}
    for name, model in zip(names, models, strict=True):  # numbered: the same model twice, or names that differ in signs
        again = (f"{name}-{number}" for number in count(2))
        folders[name if name not in folders else next(free for free in again if free not in folders)] = model
    return folders


def _measure(places: Mapping[str, str], root: Path, text: Any, options: Mapping[str, Any], progress: bool) -> None:
    """Make the reports; the reason why there is none is kept as a file."""
    asked: set[str] = set()
    watch = Watch(Console(stderr=True, quiet=not progress))  # lines only: every report has its own bar

    def make(name: str) -> None:
        asked.add(name)
        failure = root / _FAILED / f"{name}.json"
        failure.unlink(missing_ok=True)
        watch.announce(f"{list(places).index(name) + 1} of {len(places)}: {places[name]}")
        try:
            report(places[name], text, **options, folder=root / name, progress=progress)
        except CannotWrite:  # the folder is at fault, not the model
            raise
        except Exception as error:  # such as no memory on a device: the others continue
            line = " ".join(str(error).split())
            why = line if isinstance(error, AbbeError) else f"{type(error).__name__}: {line}"
            failure.parent.mkdir(exist_ok=True)
            write_json(failure, {"why": why})
            watch.announce(f"left out: {why}")

    def has(name: str) -> bool:
        """Made now, or by another process; a report of an earlier call is asked again, which checks its settings."""
        if name in asked or isinstance(current(), Local):
            return name in asked
        with suppress(AbbeError):
            return (root / _FAILED / f"{name}.json").exists() or bool(read_manifest(root / name)[0]["finished"])
        return False

    current().make(root, list(places), make, lambda name: None, has)


def _row(model: str, folder: Path, failure: Path) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(Reports.frame().schema) | {"model": without_folder(model)}
    if failure.exists():
        return row | {"skipped": read_json(failure)["why"]}
    opened = Report.opened(folder, *read_manifest(folder))
    for number, key in zip(_NUMBERS, opened.numbers, strict=True):
        row |= dict(zip(number.names, (key.value, key.low, key.high), strict=True))
    answer = {"grade": opened.answer.grade, "answer": opened.answer.sentence}
    return row | answer | {"folder": folder.name, "seconds": part_of(opened.manifest, "seconds").get("total")}
