"""A run: one tidy table of what was measured, and a manifest that says on what, how and with what left out."""

from __future__ import annotations

import html
import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from ._errors import AbbeError

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
FORMAT = 1  # of the run folder
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
        """Write the table and the manifest; each file appears whole or not at all."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        unfinished = target / f".{TABLE}.part"
        self.heads.write_parquet(unfinished)
        unfinished.replace(target / TABLE)
        write_json(target / MANIFEST, self.manifest)
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
    """The run that was saved in a folder."""
    source = Path(folder)
    if not (source / MANIFEST).is_file():
        raise AbbeError(f"{source} holds no run: there is no {MANIFEST} in it")
    manifest = read_json(source / MANIFEST)
    if manifest.get("format") != FORMAT:
        raise AbbeError(f"{source / MANIFEST} has format {manifest.get('format')!r}, this version reads {FORMAT}")
    if manifest.get("finished") and (absent := [key for key in _NEEDED if key not in manifest]):
        raise AbbeError(f"{source / MANIFEST} is not whole: it lacks {', '.join(absent)}")
    if not manifest.get("finished") or not (source / TABLE).is_file():
        raise AbbeError(f"the run in {source} is not finished: start the same run again with this folder to go on")
    try:
        heads = pl.read_parquet(source / TABLE)
    except pl.exceptions.PolarsError as error:
        raise AbbeError(f"{source / TABLE} cannot be read: {str(error).splitlines()[0]}") from None
    if dict(heads.schema) != SCHEMA:
        raise AbbeError(f"{source / TABLE} has other columns than a run: {', '.join(heads.columns)}")
    return Run(heads, manifest)


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise AbbeError(f"{path} is not valid JSON: it was changed or cut off") from None
    if not isinstance(found, dict):
        raise AbbeError(f"{path} is not a JSON object")
    return found


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)
