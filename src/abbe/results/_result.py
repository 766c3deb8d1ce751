"""The result of every study: one table, one manifest, and common ways to save, show and reopen them."""

from __future__ import annotations

import html
import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl

from .._errors import AbbeError
from .._files import CHECKED, check_file, checked, finite, read_bytes, read_json, write_json, write_whole
from .._lazy import need
from .._locks import held

MANIFEST = "manifest.json"
FORMAT = 3  # of run folders
_WITHOUT_CHECKSUMS = 1  # is read, unchecked
_READ = (_WITHOUT_CHECKSUMS, 2, FORMAT)
_NEEDED = ("model", "text", "settings", "self_check", "skipped")


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
    beside: ClassVar[tuple[str, ...]] = ()  # other files of the folder that belong to it, if they exist

    if TYPE_CHECKING:

        @property
        def table(self) -> pl.DataFrame: ...

        @property
        def manifest(self) -> Mapping[str, Any]: ...

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """What `--json` prints, as a dictionary."""

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
        need(f"{type(self).__name__}.to_html", "report")  # else the message would name `page_of`, which nobody called
        from ..views import page_of  # altair and templates are loaded only when something is drawn

        page: str = page_of(self)
        if path is not None:
            write_whole(Path(path), page)
        return page

    def _repr_html_(self) -> str:
        """What a notebook shows: a card with sentences and charts, or a plain table if the result cannot be drawn."""
        try:
            from ..views import card_of

            card: str = card_of(self)
        except Exception:
            return self._plain_html()
        return card

    def _plain_html(self) -> str:
        """Model and text, the table, and what was skipped."""
        model, text = (str((self.manifest.get(key) or {}).get("name", "")) for key in ("model", "text"))
        skipped = "".join(f"<li>{html.escape(str(why))}</li>" for why in self.manifest.get("skipped") or ())
        about = f"<p><b>{html.escape(model)}</b> on <b>{html.escape(text)}</b></p>"
        return about + self.table._repr_html_() + (f"<p>Skipped:</p><ul>{skipped}</ul>" if skipped else "")

    @abstractmethod
    def _files(self) -> dict[str, bytes | str]:
        """Contents of the files other than the manifest, by name."""


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
    if CHECKED in stored:
        name = path.name if path.name in stored[CHECKED].get("files", {}) else f"{path.parent.name}/{path.name}"
        try:
            check_file(path, content, stored, name)
        except AbbeError as error:
            raise AbbeError(f"{error}; run the same command again to rebuild it from the parts in its folder") from None
    return content


def read_manifest(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest of a finished run.

    Args:
        folder: of the run.

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
    if not manifest.get("finished"):
        raise AbbeError(f"the run in {folder} is not finished: run it again with this folder to resume it")
    if absent := [key for key in _NEEDED if key not in manifest]:
        raise AbbeError(f"{path} is incomplete: it lacks {', '.join(absent)}")
    return manifest, stored


def checked_manifest(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest read from a file, without its checksum, which the first format did not have.

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
        abbe._errors.AbbeError: manifest.json has format 99, this version reads 1, 2, 3
    """
    written = content.get("format", _WITHOUT_CHECKSUMS)
    if written not in _READ:
        raise AbbeError(f"{path} has format {written!r}, this version reads {', '.join(map(str, _READ))}")
    if written == _WITHOUT_CHECKSUMS and CHECKED not in content:
        return dict(content)
    try:
        return checked(path, content)
    except AbbeError as error:
        raise AbbeError(f"{error}; delete it, and the same command resumes from the intact files") from None
