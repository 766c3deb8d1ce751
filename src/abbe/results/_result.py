"""What every study gives: one table, one manifest, and the same ways to save, show and open them again."""

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
    """The face of all results: one table, one manifest, and the same ways to save, show and open them again.

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

    study: ClassVar[str]  # the name of the command
    page: ClassVar[str]  # file name of its page in the folder
    beside: ClassVar[tuple[str, ...]] = ()  # other files of the folder that belong to it, where they are there

    if TYPE_CHECKING:

        @property
        def table(self) -> pl.DataFrame: ...

        @property
        def manifest(self) -> Mapping[str, Any]: ...

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """What `--json` prints, as a dictionary."""

    def to_json(self) -> str:
        """What `--json` prints: one object that every reader takes; NaN and infinity become null."""
        return json.dumps(finite(self.as_json()), indent=1, allow_nan=False)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write everything to a folder that `abbe.open` reads; each file appears whole or not at all.

        Args:
            folder: which is made if it is not there.

        Returns:
            The folder.
        """
        target = Path(folder)
        with held(target):
            files = self._files()
            for name, content in files.items():
                path = target / name
                with suppress(OSError):  # what cannot be done is reported by the writer
                    path.parent.mkdir(exist_ok=True)
                    if path.is_dir() and not path.is_symlink():  # whatever it holds is kept
                        path.rename(path.with_name(f"{path.name}.moved"))
                write_whole(path, content)
            beside = [name for name in self.beside if (target / name).is_file()]
            write_json(target / MANIFEST, self.manifest, files=[*files, *beside])
        return target

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The page, also written to a file if one is named: it works offline and makes no network requests.

        Args:
            path: of the file.

        Returns:
            The HTML.
        """
        need(f"{type(self).__name__}.to_html", "report")  # else the message would name `page_of`, which nobody called
        from ..views import page_of  # altair and templates are loaded only when something is drawn

        drawn: str = page_of(self)
        if path is not None:
            write_whole(Path(path), drawn)
        return drawn

    def _repr_html_(self) -> str:
        """What a notebook shows: a card with sentences and charts, or a plain table of a result too odd to be drawn."""
        try:
            from ..views import card_of

            drawn: str = card_of(self)
        except Exception:
            return self._plain_html()
        return drawn

    def _plain_html(self) -> str:
        """What was measured on what, the table, and what was skipped."""
        model, text = (str((self.manifest.get(key) or {}).get("name", "")) for key in ("model", "text"))
        skipped = "".join(f"<li>{html.escape(str(why))}</li>" for why in self.manifest.get("skipped") or ())
        about = f"<p><b>{html.escape(model)}</b> on <b>{html.escape(text)}</b></p>"
        return about + self.table._repr_html_() + (f"<p>Skipped:</p><ul>{skipped}</ul>" if skipped else "")

    @abstractmethod
    def _files(self) -> dict[str, bytes | str]:
        """What is written beside the manifest, by name."""


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
    """The text of a JSON file beside the manifest, which holds its checksum; NaN and infinity become null.

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
    """A Parquet file of a finished run, refused if it is damaged or has other columns.

    Args:
        path: of the file.
        stored: the manifest beside it, as `read_manifest` reads it.
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
        raise AbbeError(f"{path} has other columns than a run: {', '.join(table.columns)}")
    return table


def read_content(path: Path, stored: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON file of a finished run, refused if it is damaged.

    Args:
        path: of the file.
        stored: the manifest beside it, as `read_manifest` reads it.

    Returns:
        What is in it.

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
            raise AbbeError(f"{error}; the same command makes it again, from the parts in its folder") from None
    return content


def read_manifest(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest of a finished run.

    Args:
        folder: of the run.

    Returns:
        The manifest, and the same as it was read, with its checksums.

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
        raise AbbeError(f"the run in {folder} is not finished: the same run with this folder resumes it")
    if absent := [key for key in _NEEDED if key not in manifest]:
        raise AbbeError(f"{path} is not whole: it lacks {', '.join(absent)}")
    return manifest, stored


def checked_manifest(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest that was read from a file, without its checksum, which the first format had not.

    Args:
        path: of the file, for messages.
        content: as it was read.

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
        raise AbbeError(f"{error}; delete it, and the same command resumes with what is whole in the folder") from None
