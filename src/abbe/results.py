"""A run: one tidy table of what was measured, and a manifest that says on what, how and with what left out."""

from __future__ import annotations

import html
import importlib
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from ._errors import AbbeError
from ._held import held
from ._stored import CHECKED, check_file, checked, read_bytes, read_json, write_json, write_whole

SCHEMA: dict[str, Any] = {
    "model": pl.String,
    "layer": pl.Int32,
    "head": pl.Int32,
    "length": pl.Int32,
    "n": pl.Int32,
    "measure": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "limit": pl.Float64,
    "control": pl.Float64,
}
TABLE = "heads.parquet"
MANIFEST = "manifest.json"
FORMAT = 2  # of the run folder
_WITHOUT_CHECKSUMS = 1  # is read, unchecked
_NEEDED = ("model", "text", "settings", "self_check", "skipped")


@dataclass(frozen=True, eq=False)
class Run:
    """What `diagnose` found.

    Attributes:
        heads: a polars table, a row for each model, layer, head, window length, set size n and measure, with the
            value, its interval (low, high), its limit and its control. What holds for all heads, all lengths or all
            set sizes has null there.
        manifest: versions, seeds, hashes of model and text, settings, self-check error, times, memory, what was
            skipped and why.
    """

    heads: pl.DataFrame = field(repr=False)
    manifest: Mapping[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        model, text, settings = (self.manifest[key] for key in ("model", "text", "settings"))
        return f"Run({model['name']} on {text['name']}, lengths {settings['lengths']}, {len(self.heads)} rows)"

    @property
    def headroom(self) -> pl.DataFrame:
        """The rows that have a limit, with headroom = 1 - value/limit: 0 means that the limit is reached."""
        limited = self.heads.filter(pl.col("limit").is_not_null())
        return limited.with_columns(headroom=1 - pl.col("value") / pl.col("limit"))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the table and the manifest, which holds its checksum; each file appears whole or not at all."""
        target = Path(folder)
        with held(target):
            write_whole(target / TABLE, parquet_bytes(self.heads))
            write_json(target / MANIFEST, self.manifest, files=[TABLE])
        return target

    def _repr_html_(self) -> str:
        """What a notebook shows: charts, or a plain table of a run that is too odd to be drawn."""
        try:
            # Views lie above this module: they are asked for by name, and only when something is shown.
            drawn: str = importlib.import_module("abbe.views").run_html(self)
        except Exception:
            return self._plain_html()
        return drawn

    def _plain_html(self) -> str:
        """What was measured on what, and the mean over heads of each measure at the largest length."""
        model, text = self.manifest["model"], self.manifest["text"]
        error, skipped = self.manifest["self_check"]["error"], self.manifest["skipped"]
        lines = [
            f"<p><b>{html.escape(model['name'])}</b> ({html.escape(model['about'])}) on "
            f"<b>{html.escape(text['name'])}</b>: {len(self.heads):,} rows, self-check error {error:.1e}</p>",
            summary(self.heads)._repr_html_(),
        ]
        if skipped:
            lines.append("<p>Skipped:</p><ul>" + "".join(f"<li>{html.escape(why)}</li>" for why in skipped) + "</ul>")
        return "\n".join(lines)


def summary(heads: pl.DataFrame) -> pl.DataFrame:
    """Mean over all heads at the largest length, for measures without a set size and for the middle set size."""
    of_heads = heads.filter(pl.col("head").is_not_null() & pl.col("value").is_not_nan())
    longest = pl.col("length").is_null() | (pl.col("length") == pl.col("length").max())
    sizes = sorted(of_heads.filter(longest)["n"].drop_nulls().unique())
    wanted = pl.col("n").is_null()
    if sizes:
        wanted |= pl.col("n") == sizes[len(sizes) // 2]
    chosen = of_heads.filter(longest & wanted)
    means = [pl.col(name).mean() for name in ("value", "limit", "control")]
    return chosen.group_by("measure", "length", "n", maintain_order=True).agg(*means, heads=pl.len())


def open_run(folder: str | os.PathLike[str]) -> Run:
    """The run that was saved in a folder, refused if table or manifest are damaged."""
    source = Path(folder)
    if not (source / MANIFEST).exists() and not (source / MANIFEST).is_symlink():
        raise AbbeError(f"{source} holds no run: there is no {MANIFEST} in it")
    stored = read_json(source / MANIFEST)
    manifest = checked_manifest(source / MANIFEST, stored)
    if manifest.get("finished") and (absent := [key for key in _NEEDED if key not in manifest]):
        raise AbbeError(f"{source / MANIFEST} is not whole: it lacks {', '.join(absent)}")
    there = (source / TABLE).exists() or (source / TABLE).is_symlink()
    if not manifest.get("finished") or not there:
        raise AbbeError(f"the run in {source} is not finished: start the same run again with this folder to go on")
    return Run(_table(source / TABLE, stored), manifest)


def _table(path: Path, manifest: Mapping[str, Any]) -> pl.DataFrame:
    content = read_bytes(path)
    try:
        if CHECKED in manifest:
            check_file(path, content, manifest)
        heads = pl.read_parquet(io.BytesIO(content))
    except AbbeError as error:
        raise AbbeError(f"{error}; the same command makes it again, from the parts in its folder") from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise AbbeError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    if dict(heads.schema) != SCHEMA:
        raise AbbeError(f"{path} has other columns than a run: {', '.join(heads.columns)}")
    return heads


def checked_manifest(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest or identity that was read from a file, without its checksum, which the first format had not."""
    written = content.get("format", _WITHOUT_CHECKSUMS)
    if written not in (_WITHOUT_CHECKSUMS, FORMAT):
        raise AbbeError(f"{path} has format {written!r}, this version reads {FORMAT}")
    if written == _WITHOUT_CHECKSUMS and CHECKED not in content:
        return dict(content)
    try:
        return checked(path, content)
    except AbbeError as error:
        raise AbbeError(f"{error}; delete it, and the same command goes on with what is whole in the folder") from None


def parquet_bytes(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()
