"""report_each: the reports of many models or checkpoints, each in its folder, and one table and page above them."""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
from rich.console import Console

from .._errors import AbbeError
from .._files import CannotWrite, read_json, write_json
from ..models import PULLABLE
from ..results import Result, as_parquet, read_manifest, read_table
from ..runs.executors import Local, current
from ..runs.inputs import as_folder
from ..runs.measuring import study_facts
from ..runs.study import study
from ..runs.watch import Watch
from ..words.numbers import many
from ._report.study import opened_report, report

TABLE = "models.parquet"
NUMBERS = ("effective_tokens", "separability", "critical_n", "decay", "sensitivity")
_OF_NUMBERS = {f"{name}{end}": pl.Float64 for name in NUMBERS for end in ("", "_low", "_high")}
SCHEMA: dict[str, Any] = {
    "model": pl.String, "folder": pl.String, "grade": pl.String, "answer": pl.String, **_OF_NUMBERS,
    "seconds": pl.Float64, "skipped": pl.String,
}  # fmt: skip
_NAMES = ("embedded", *PULLABLE)


_FAILED = "failed"  # folder with the reasons why models could not be measured


@dataclass(frozen=True, eq=False)
class Reports(Result):
    """The result of `report_each`.

    Attributes:
        table: a row per model in the given order: its answer and the five numbers of its report with their intervals,
            the folder of the report within this one, and in `skipped` why there is none.
        manifest: as for every study; `models` lists the requested models.
    """

    table: pl.DataFrame
    manifest: Mapping[str, Any]

    study: ClassVar[str] = "report --each"
    page: ClassVar[str] = "index.html"

    def __repr__(self) -> str:
        answered = self.table["answer"].drop_nulls().len()
        return f"Reports({many(self.table.height, 'model')}, {answered} measured: {', '.join(self.table['model'])})"

    def as_json(self) -> dict[str, Any]:
        return {"table": self.table.to_dicts(), "manifest": dict(self.manifest)}

    def _files(self) -> dict[str, bytes | str]:
        return {TABLE: as_parquet(self.table)}


def opened_reports(folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Reports:
    return Reports(read_table(folder / TABLE, stored, SCHEMA), manifest)


@study(Reports, extra="all", command="report --each", opened=opened_reports)
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
    reasons = _measured(places, root, text, options, progress)
    rows = [_row(model, name, root, reasons.get(name)) for name, model in places.items()]
    if not any(row["answer"] for row in rows):
        raise AbbeError(f"no model could be measured; the first one: {rows[0]['skipped']}")
    return Reports(pl.DataFrame(rows, schema=SCHEMA), _manifest(rows, options, time.perf_counter() - started))


def _listed(models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """In the given order; matches of a pattern by name, numbers by value, so that step 900 comes before step 1000."""
    if isinstance(models, str | os.PathLike):
        pattern = os.fspath(models)
        matching = [path for path in glob.glob(os.path.expanduser(pattern), recursive=True) if _is_model(Path(path))]
        listed = sorted(matching, key=_by_number) or ([pattern] if pattern in _NAMES else [])
        if not listed:
            raise AbbeError(f"no folder with config.json and no .gguf file matches {pattern!r}")
        return listed
    listed = [os.fspath(model) for model in models]
    if not listed:
        raise AbbeError("models is empty: give names or folders, or a pattern such as 'checkpoints/*'")
    return listed


def _is_model(path: Path) -> bool:
    return path.suffix == ".gguf" or (path / "config.json").is_file()


def _by_number(name: str) -> list[Any]:
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", name)]


def _folders(models: Sequence[str]) -> dict[str, str]:
    """A unique folder name per model: as much of the end of its path as necessary, whatever the order of the models."""
    paths = [Path(os.path.abspath(model)).parts if os.path.exists(model) else (model,) for model in models]
    names = [""] * len(paths)
    for length in range(1, max(map(len, paths)) + 1):
        names = [_as_name("-".join(path[-length:])) for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    folders: dict[str, str] = {}
    for name, model in zip(names, models, strict=True):
        place, again = name, 2  # for the same model twice, or names that differ only in odd characters
        while place in folders:
            place, again = f"{name}-{again}", again + 1
        folders[place] = model
    return folders


def _as_name(path: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ".-_" else "-" for letter in path).strip(".-") or "model"


def _measured(
    places: Mapping[str, str], root: Path, text: Any, options: Mapping[str, Any], progress: bool
) -> dict[str, str]:
    """Make the reports; returns why there is none, by folder."""
    local = isinstance(current(), Local)
    asked: set[str] = set()
    failures = {name: root / _FAILED / f"{name}.json" for name in places}
    watch = Watch(Console(stderr=True, quiet=not progress), None)  # lines only: every report has its own bar

    def make(name: str) -> None:
        asked.add(name)
        failures[name].unlink(missing_ok=True)
        watch.announce(f"{list(places).index(name) + 1} of {len(places)}: {places[name]}")
        try:
            report(places[name], text, **options, folder=root / name, progress=progress)
        except CannotWrite:  # the folder is at fault, not the model
            raise
        except Exception as error:  # such as no memory on a device: the others continue
            line = " ".join(str(error).split())
            why = line if isinstance(error, AbbeError) else f"{type(error).__name__}: {line}"
            failures[name].parent.mkdir(exist_ok=True)
            write_json(failures[name], {"why": why})
            watch.announce(f"left out: {why}")

    def has(name: str) -> bool:
        """Made now, or by another process; a report of an earlier call is asked again, which checks its settings."""
        return name in asked or (not local and (failures[name].exists() or _is_finished(root / name)))

    current().make(root, list(places), make, lambda name: None, has)
    return {name: read_json(path)["why"] for name, path in failures.items() if path.exists()}


def _is_finished(folder: Path) -> bool:
    try:
        return bool(read_manifest(folder)[0]["finished"])
    except AbbeError:
        return False


def _row(model: str, name: str, root: Path, reason: str | None) -> dict[str, Any]:
    row = dict.fromkeys(SCHEMA) | {"model": model}
    if reason is not None:
        return row | {"skipped": reason}
    opened = opened_report(root / name, *read_manifest(root / name))
    for number_name, number in zip(NUMBERS, opened.numbers, strict=True):
        row |= {number_name: number.value, f"{number_name}_low": number.low, f"{number_name}_high": number.high}
    seconds = (opened.manifest.get("seconds") or {}).get("total")
    answer = {"grade": opened.answer.grade, "answer": opened.answer.sentence}
    return row | answer | {"folder": name, "seconds": seconds}


def _manifest(rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    settings = {
        name: value if isinstance(value, str | int | float | None) else str(value) for name, value in options.items()
    }
    return study_facts(Reports.study, settings) | {
        "model": {"name": f"{len(rows)} models"},
        "models": [row["model"] for row in rows],
        "text": {},
        "self_check": {},
        "skipped": [f"{row['model']}: {row['skipped']}" for row in rows if row["skipped"]],
        "seconds": {"total": round(seconds, 3)},
        "finished": True,
    }
