"""The result of every study: one table, one manifest, and common ways to save, show and reopen them; its numbers."""

from __future__ import annotations

import html
import io
import json
import math
import os
import sys
from abc import ABC
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import polars as pl

from .._errors import AbbeError
from .._files import CHECKED, check_file, checked, finite, read_bytes, read_json, write_json, write_whole
from .._lazy import need
from .._locks import held
from ..views import TextTable, View, card, page
from ..views.theme import ThemeName
from ..words.finding import findings_from
from ..words.frames import FRAME, Cell, Column, Frame
from ..words.manifest import in_place_words
from ..words.numbers import MISSING, with_interval

MANIFEST = "manifest.json"
FORMAT = 4  # of run folders
_MANIFEST = (
    "format, versions, machine, model and text with their hashes, settings and seed, self-check, seconds, what was "
    "skipped and why; checksums of the other files"
)
_PAGE = "the page: one file that works offline"
_CONTENT = "findings with their rules, and tables that are no files of their own"
_NEEDED = ("model", "text", "settings", "self_check", "skipped")


@dataclass(frozen=True)
class Estimate:
    """A number that was measured on a sample, with its interval.

    Attributes:
        value: the number; NaN if it could not be measured.
        low: lower end of the interval; None where there is none, as from a single window.
        high: upper end of the interval; None where there is none.

    Examples:
        >>> gain = abbe.results.Estimate(0.12, 0.06, 0.14)
        >>> gain.above(0), gain.below(0)
        (True, False)
    """

    value: float
    low: float | None = None
    high: float | None = None

    def above(self, limit: float) -> bool:
        """Whether the whole interval lies above a limit; never without an interval.

        Args:
            limit: to compare with.
        """
        return self.low is not None and self.low > limit

    def below(self, limit: float) -> bool:
        """Whether the whole interval lies below a limit; never without an interval.

        Args:
            limit: to compare with.
        """
        return self.high is not None and self.high < limit

    def columns(self, name: str, low: str = "_low", high: str = "_high") -> dict[str, float | None]:
        """Three entries of a table's row; None for numbers that are not finite.

        Args:
            name: of the value.
            low: appended to the name for the lower end.
            high: appended to the name for the upper end.
        """
        numbers = {name: self.value, f"{name}{low}": self.low, f"{name}{high}": self.high}
        return {key: None if value is None or not math.isfinite(value) else value for key, value in numbers.items()}

    def text(self, show: Callable[[float], str]) -> str:
        """The value and its interval, such as "1.2 (0.9 to 1.4)".

        Args:
            show: how to write one number.
        """
        return with_interval(self.value, self.low, self.high, show)


class Result(ABC):
    """The interface of all results: one table, one manifest, and common ways to save, show and reopen them.

    Attributes:
        table: the main table, a polars data frame.
        manifest: format, study, versions, machine, model and text with their hashes, settings and seed, self-check,
            seconds, and what was skipped and why.
        study: the name of the command.
        page: file name of its page in the folder.

    Examples:
        >>> run = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False)
        >>> folder = run.save("run")
        >>> abbe.open(folder).table.equals(run.table)
        True
    """

    study: ClassVar[str]
    page: ClassVar[str]
    json_file: ClassVar[str]  # findings, and tables that are no files of their own; empty if all is in the table
    beside: ClassVar[tuple[str, ...]] = ()  # other files of the folder that belong to it, if they exist
    files: ClassVar[Mapping[str, str]] = {}  # further files and folders (with a slash) of its folder: what is in them
    figures_in: ClassVar[str] = ""  # folder within its own where the command line draws its charts even unasked
    offers: ClassVar[str] = ""  # what its attribute `file` is, if users go on with one, such as "plan"
    drawn: ClassVar[bool] = False  # whether it has charts: `charts_of` in the module `charts` beside its own
    known: ClassVar[dict[str, type[Result]]] = {}  # every class by its study

    def __init_subclass__(
        cls, study: str = "", page: str = "", json_file: str | None = None, drawn: bool = False, **options: Any
    ) -> None:
        """Register the result of a study, which names its folder, page and files."""
        super().__init_subclass__(**options)
        if study:
            cls.study, cls.page, cls.drawn = study, page or f"{study}.html", drawn
            cls.json_file = f"{study.replace(' ', '-')}.json" if json_file is None else json_file
        if "study" in vars(cls):
            Result.known[cls.study] = cls
        if "__repr__" not in vars(cls):  # else a dataclass would list all its fields
            cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    if TYPE_CHECKING:

        @property
        def table(self) -> pl.DataFrame: ...

        @property
        def manifest(self) -> Mapping[str, Any]: ...

    def view(self) -> View:
        """What people see of it, as data: terminal, page, notebook and figures show the same."""
        raise NotImplementedError(f"{type(self).__name__} has no view")

    def _view(self, question: str, *about: str, **parts: Any) -> View:
        """A view of it with these parts; findings, charts and manifest are its own unless they are given."""
        charts, findings = self._charts if self.drawn else None, getattr(self, "findings", ())
        about = (*about, *filter(None, [in_place_words(self.manifest)]))
        own: dict[str, Any] = {"study": self.study, "findings": findings, "charts": charts, "manifest": self.manifest}
        return View(question=question, about=about, **own | parts)

    def _charts(self, theme: ThemeName) -> Mapping[str, Any]:
        """Its charts by name; the module that draws them needs altair, of an extra."""
        drawing: Any = import_module(".charts", sys.modules[type(self).__module__].__package__)
        drawn: Mapping[str, Any] = drawing.charts_of(self, theme)
        return drawn

    def _shown(
        self, title: str, *columns: str | Column | Cell, table: str = "table", rows: pl.DataFrame | None = None,
        missing: str = MISSING, **options: Any,
    ) -> TextTable:  # fmt: skip
        """A table for people: declared columns by name, and others, each a heading and what makes a cell of a row.

        `table` is the attribute that holds the rows, `rows` are those to show if not all.
        """
        named = [self.frame(table)[x] if isinstance(x, str) else x for x in columns]
        cells = [(x.label, partial(x.text, missing=missing)) if isinstance(x, Column) else x for x in named]
        rows = getattr(self, table) if rows is None else rows
        texts = [[text(row) for _, text in cells] for row in rows.iter_rows(named=True)]
        options = {"left": tuple(x.label for x in named[1:] if isinstance(x, Column) and x.dtype is str)} | options
        return TextTable(title, [heading for heading, _ in cells], texts, **options)

    @classmethod
    def frames(cls) -> dict[str, Frame]:
        """Its tables by the attribute that holds them: what a row is, and what each column means."""
        declared = {field.name: field.metadata.get(FRAME) for field in fields(cast(Any, cls))}
        return {name: table for name, table in declared.items() if table is not None}

    @classmethod
    def frame(cls, name: str = "table") -> Frame:
        """The declaration of one of its tables.

        Args:
            name: of the attribute that holds it.
        """
        return cls.frames()[name]

    @classmethod
    def list_files(cls) -> dict[str, str]:
        """What its folder holds, and what is in each file; a name with a slash is a folder."""
        tables = {table.file or f"{name}.csv": f"a row is {table.rows}" for name, table in cls.frames().items()}
        content = {cls.json_file: _CONTENT} if cls.json_file else {}
        return {MANIFEST: _MANIFEST, cls.page: _PAGE} | tables | content | dict(cls.files)

    def __repr__(self) -> str:
        model, text = (str((self.manifest.get(key) or {}).get("name") or "") for key in ("model", "text"))
        about = " on ".join(name for name in (model, text) if name)
        return f"{type(self).__name__}({about}{', ' if about else ''}{self.table.height:,} rows)"

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints, as a dictionary: tables as lists of rows, findings, and the rest."""
        rows = {name: getattr(self, name).to_dicts() for name in self.frames()}
        return rows | self._content() | {"manifest": dict(self.manifest)}

    def _content(self) -> dict[str, Any]:
        """What its JSON file holds besides tables and manifest."""
        findings = getattr(self, "findings", None)
        return {} if findings is None else {"findings": [asdict(finding) for finding in findings]}

    @classmethod
    def _from_content(cls, content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """The inverse of `_content`: arguments of the class."""
        return {"findings": findings_from(content["findings"])} if "findings" in content else {}

    @classmethod
    def opened(cls, folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Self:
        """From a folder whose manifest was read.

        Args:
            folder: of the run.
            manifest: of the run.
            stored: the same with its checksums.
        """
        result: Self = cls._read(folder, manifest, stored)
        return result

    @classmethod
    def _read(cls, folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Any:
        content = read_content(folder / cls.json_file, stored) if cls.json_file else {}
        tables = {
            name: read_table(folder / table.file, stored, table.schema) if table.file else table.of(content[name])
            for name, table in cls.frames().items()
        }
        return cast(Any, cls)(**tables, **cls._from_content(content, folder), manifest=manifest)

    def to_json(self) -> str:
        """What `--json` prints: one valid JSON object; NaN and infinity become null."""
        return json.dumps(finite(self.as_json()), indent=1, allow_nan=False)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write everything to a folder that `abbe.open` reads; each file appears whole or not at all.

        Args:
            folder: created if missing.

        Returns:
            The folder.
        """
        target = Path(folder)
        with held(target):
            files = self._files()
            for name, content in files.items():
                path = target / name
                with suppress(OSError):  # `write_whole` reports the failure
                    path.parent.mkdir(exist_ok=True)
                    if path.is_dir() and not path.is_symlink():  # its content is kept
                        path.rename(path.with_name(f"{path.name}.moved"))
                write_whole(path, content)
            beside = [name for name in self.beside if (target / name).is_file()]
            write_json(target / MANIFEST, self.manifest, files=[*files, *beside])
        return target

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The page, which works offline and makes no network requests; also written to a file if a path is given.

        Args:
            path: of the file.

        Returns:
            The HTML.
        """
        need(f"{type(self).__name__}.to_html", "report")  # else the message would name a function that nobody called
        html = page(self)
        if path is not None:
            write_whole(Path(path), html)
        return html

    def _repr_html_(self) -> str:
        """What a notebook shows: a card with sentences and charts, or a plain table if the result cannot be drawn."""
        try:
            return card(self)
        except Exception:
            return self._plain_html()

    def _plain_html(self) -> str:
        """Model and text, the table, and what was skipped."""
        model, text = (str((self.manifest.get(key) or {}).get("name", "")) for key in ("model", "text"))
        skipped = "".join(f"<li>{html.escape(str(why))}</li>" for why in self.manifest.get("skipped") or ())
        about = f"<p><b>{html.escape(model)}</b> on <b>{html.escape(text)}</b></p>"
        return about + self.table._repr_html_() + (f"<p>Skipped:</p><ul>{skipped}</ul>" if skipped else "")

    def _files(self) -> dict[str, bytes | str]:
        """Contents of the files other than the manifest, by name."""
        files: dict[str, bytes | str] = {}
        inside: dict[str, Any] = {}  # tables in the JSON file
        for name, table in self.frames().items():
            rows: pl.DataFrame = getattr(self, name)
            if table.file:
                files[table.file] = as_parquet(rows)
            else:
                files[f"{name}.csv"] = rows.write_csv()
                inside[name] = rows.to_dicts()
        return files | ({self.json_file: as_text(inside | self._content())} if self.json_file else {})


def as_parquet(table: pl.DataFrame) -> bytes:
    """A table as the bytes of a Parquet file.

    Args:
        table: of polars.

    Returns:
        The bytes.

    Examples:
        >>> import polars as pl
        >>> abbe.results.as_parquet(pl.DataFrame({"n": [1, 2]}))[:4]
        b'PAR1'
    """
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()


def as_text(content: Mapping[str, Any]) -> str:
    """The text of a JSON file whose checksum is in the manifest; NaN and infinity become null.

    Args:
        content: of the file.

    Returns:
        The text.

    Examples:
        >>> abbe.results.as_text({"value": float("nan")}).split()
        ['{', '"value":', 'null', '}']
    """
    return json.dumps(finite(content), indent=1, allow_nan=False) + "\n"


def read_table(path: Path, stored: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> pl.DataFrame:
    """A Parquet file of a finished run; an error if it is damaged or has other columns.

    Args:
        path: of the file.
        stored: the manifest of its folder, from `read_manifest`.
        schema: the columns that it must have.

    Returns:
        The table.

    Raises:
        AbbeError: it cannot be read, or is not what was written.

    Examples:
        >>> folder = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False).save("run")
        >>> _, stored = abbe.results.read_manifest(folder)
        >>> abbe.results.read_table(folder / abbe.results.TABLE, stored, abbe.results.SCHEMA).width
        11
    """
    content = _checked_bytes(path, stored)
    try:
        table = pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise AbbeError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    if schema is not None and dict(table.schema) != dict(schema):
        raise AbbeError(f"{path} does not have the columns of a run: {', '.join(table.columns)}")
    return table


def read_content(path: Path, stored: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON file of a finished run; an error if it is damaged.

    Args:
        path: of the file.
        stored: the manifest of its folder, from `read_manifest`.

    Returns:
        Its content.

    Raises:
        AbbeError: it cannot be read, or is not what was written.

    Examples:
        >>> result = abbe.calibrate(normalizer="topk:k=8", length=32, windows=2, held_out=2, steps=2, progress=False)
        >>> folder = result.save("fitted")
        >>> _, stored = abbe.results.read_manifest(folder)
        >>> abbe.results.read_content(folder / "calibration.json", stored)["spec"]
        'topk:k=8'
    """
    _checked_bytes(path, stored)
    return {key: value for key, value in read_json(path).items() if key != CHECKED}


def _checked_bytes(path: Path, stored: Mapping[str, Any]) -> bytes:
    content = read_bytes(path)
    name = path.name if path.name in stored[CHECKED].get("files", {}) else f"{path.parent.name}/{path.name}"
    try:
        check_file(path, content, stored, name)
    except AbbeError as error:
        raise AbbeError(f"{error}; run the same command again to rebuild it from the parts in its folder") from None
    return content


def read_manifest(folder: Path, finished: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest of a run.

    Args:
        folder: of the run.
        finished: refuse a run that is not finished.

    Returns:
        The manifest, and the same with its checksums.

    Raises:
        AbbeError: there is none, the run is not finished, or the manifest is damaged.

    Examples:
        >>> folder = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False).save("run")
        >>> abbe.results.read_manifest(folder)[0]["study"]
        'diagnose'
    """
    path = folder / MANIFEST
    if not path.exists() and not path.is_symlink():
        raise AbbeError(f"{folder} holds no run: there is no {MANIFEST} in it")
    stored = read_json(path)
    manifest = checked_manifest(path, stored)
    if not finished and not manifest.get("finished"):
        return manifest, stored
    if not manifest.get("finished"):
        raise AbbeError(f"the run in {folder} is not finished: run it again with this folder to resume it")
    if absent := [key for key in _NEEDED if key not in manifest]:
        raise AbbeError(f"{path} is incomplete: it lacks {', '.join(absent)}")
    return manifest, stored


def checked_manifest(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest read from a file, without its checksum.

    Args:
        path: of the file, for messages.
        content: of the file.

    Returns:
        The manifest.

    Raises:
        AbbeError: it is damaged, or of a format that this version does not read.

    Examples:
        >>> from pathlib import Path
        >>> abbe.results.checked_manifest(Path("manifest.json"), {"format": 99})
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: manifest.json was written by another version of abbe (format 99, ...
    """
    written = content.get("format")
    if written is None:
        raise AbbeError(f"{path} is not of a run of abbe: name a new folder (--out)")
    if written != FORMAT:
        raise AbbeError(
            f"{path} was written by another version of abbe (format {written!r}, this one has {FORMAT}): measure again "
            "in a new folder (--out)"
        )
    try:
        return checked(path, content)
    except AbbeError as error:
        raise AbbeError(f"{error}; delete it, and the same command resumes from the intact files") from None
