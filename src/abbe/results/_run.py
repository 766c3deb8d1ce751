"""A run: one tidy table of measurements, and a manifest that says on what, how, and what was skipped."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from .._errors import AbbeError
from ._result import Result, as_parquet, read_manifest, read_table

SCHEMA: dict[str, Any] = {
    "model": pl.String, "layer": pl.Int32, "head": pl.Int32, "length": pl.Int32, "n": pl.Int32, "measure": pl.String,
    **dict.fromkeys(("value", "low", "high", "limit", "control"), pl.Float64),
}  # fmt: skip
TABLE = "heads.parquet"


@dataclass(frozen=True, eq=False)
class Run(Result):
    """What `diagnose` measured.

    Attributes:
        table: a polars table, a row for each model, layer, head, window length, set size n and measure, with the
            value, its interval (low, high), its limit and its control. Null in head, length or n means all of
            them.
        manifest: versions, seeds, hashes of model and text, settings, self-check error, times, memory, what was
            skipped and why.
    """

    study: ClassVar[str] = "diagnose"
    page: ClassVar[str] = "diagnose.html"

    table: pl.DataFrame = field(repr=False)
    manifest: Mapping[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        model, text, settings = (self.manifest[key] for key in ("model", "text", "settings"))
        return f"Run({model['name']} on {text['name']}, lengths {settings['lengths']}, {len(self.table)} rows)"

    @property
    def headroom(self) -> pl.DataFrame:
        """The rows that have a limit, with headroom = 1 - value/limit: 0 means that the limit is reached."""
        limited = self.table.filter(pl.col("limit").is_not_null())
        return limited.with_columns(headroom=1 - pl.col("value") / pl.col("limit"))

    @classmethod
    def opened(cls, folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Run:
        """From a folder whose manifest was read.

        Args:
            folder: of the run.
            manifest: of the run.
            stored: the same with its checksums.
        """
        return opened_run(folder, manifest, stored)

    def as_json(self) -> dict[str, Any]:
        return {"table": self.table.to_dicts(), "manifest": dict(self.manifest)}

    def _files(self) -> dict[str, bytes | str]:
        return {TABLE: as_parquet(self.table)}


def opened_run(folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Run:
    """The table of heads in a folder whose manifest was read.

    Args:
        folder: of the run.
        manifest: of the run.
        stored: the same with its checksums.

    Returns:
        The run.

    Raises:
        AbbeError: the run is not finished, or its table is damaged.

    Examples:
        >>> folder = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False).save("run")
        >>> abbe.results.opened_run(folder, *abbe.results.read_manifest(folder))
        Run(abbe-gpt2-5M on embedded sample, lengths [32], ... rows)
    """
    if not (folder / TABLE).exists() and not (folder / TABLE).is_symlink():
        raise AbbeError(f"the run in {folder} is not finished: run it again with this folder to resume it")
    return Run(read_table(folder / TABLE, stored, SCHEMA), manifest)


def open_run(folder: str | os.PathLike[str]) -> Run:
    """The table of heads that `diagnose` or `report` saved in a folder.

    Args:
        folder: of the run.

    Returns:
        The run.

    Raises:
        AbbeError: the folder holds no such run, or its table or manifest is damaged.

    Examples:
        >>> folder = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False).save("run")
        >>> abbe.open_run(folder)
        Run(abbe-gpt2-5M on embedded sample, lengths [32], ... rows)
    """
    source = Path(folder).expanduser()
    manifest, stored = read_manifest(source)
    if manifest.get("study", Run.study) not in (Run.study, "report"):
        raise AbbeError(f"{source} is a folder of `abbe {manifest['study']}`: open it with `abbe.open`")
    return opened_run(source, manifest, stored)
