"""The reports of many models: a row per model, each with its report in a separate folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from ...results import Result, as_parquet, read_table
from ...words.finding import KeyNumber
from .._report.answer import Answer

TABLE = "models.parquet"
NUMBERS = ("effective_tokens", "separability", "critical_n", "decay", "sensitivity")
_OF_NUMBERS = {f"{name}{end}": pl.Float64 for name in NUMBERS for end in ("", "_low", "_high")}
SCHEMA: dict[str, Any] = {
    "model": pl.String, "folder": pl.String, "grade": pl.String, "answer": pl.String, **_OF_NUMBERS,
    "seconds": pl.Float64, "skipped": pl.String,
}  # fmt: skip


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

    def as_json(self) -> dict[str, Any]:
        return {"table": self.table.to_dicts(), "manifest": dict(self.manifest)}

    def _files(self) -> dict[str, bytes | str]:
        return {TABLE: as_parquet(self.table)}


def row_of(
    model: str, folder: str, answer: Answer, numbers: Sequence[KeyNumber], seconds: float | None
) -> dict[str, Any]:
    row: dict[str, Any] = {"model": model, "folder": folder, "grade": answer.grade, "answer": answer.sentence}
    for name, number in zip(NUMBERS, numbers, strict=True):
        row |= {name: number.value, f"{name}_low": number.low, f"{name}_high": number.high}
    return row | {"seconds": seconds, "skipped": None}


def opened_reports(folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Reports:
    return Reports(read_table(folder / TABLE, stored, SCHEMA), manifest)
