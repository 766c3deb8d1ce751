"""The result of `diff`: every measure of every head on both sides, with the difference and its paired interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from ... import results
from ...results import Result, as_parquet, as_rows, as_text, read_content, read_table
from ...words.finding import Finding, findings_from
from .paired import SCHEMA

TABLE, CURVES, FINDINGS = "differences.parquet", "curves.parquet", "findings.json"
CURVE_SCHEMA: dict[str, Any] = {"side": pl.Int32, **results.SCHEMA}


@dataclass(frozen=True, eq=False)
class Difference(Result):
    """The result of `diff`: the differences between the first and the last side.

    Attributes:
        table: a row for each layer, head, window length, set size n and measure: value on the first and on the last
            side (means over windows), their difference with its paired interval, the difference over the spread of the
            heads (`effect`), p value, q value, and whether it counts as changed. The largest changes come first. Rows
            of all heads together have null as layer and head.
        curves: rows of all sides, as `diagnose` gives them, with the number of the side: of all heads together, and
            of single heads for the main measures.
        findings: what changed, in sentences with their rules.
        manifest: as of every study; `models` are all sides.
    """

    study: ClassVar[str] = "diff"
    page: ClassVar[str] = "diff.html"

    table: pl.DataFrame = field(repr=False)
    curves: pl.DataFrame = field(repr=False)
    findings: tuple[Finding, ...] = field(repr=False)
    manifest: Mapping[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        changed = self.changed.select("layer", "head").unique().height
        return f"Difference({' to '.join((self.names[0], self.names[-1]))}, {changed} of {self.heads} heads changed)"

    @property
    def names(self) -> list[str]:
        """Names of the sides, in order."""
        return [str(one["name"]) for one in self.manifest["models"]]

    @property
    def of_heads(self) -> pl.DataFrame:
        """The rows of single heads."""
        return self.table.filter(pl.col("head").is_not_null())

    @property
    def changed(self) -> pl.DataFrame:
        """The rows of single heads that count as changed, the largest first."""
        return self.of_heads.filter("changed")

    @property
    def heads(self) -> int:
        """Number of heads that were compared."""
        return self.of_heads.select("layer", "head").unique().height

    def as_json(self) -> dict[str, Any]:
        return {
            "findings": [asdict(finding) for finding in self.findings],
            **as_rows({"table": self.table, "curves": self.curves}),
            "manifest": dict(self.manifest),
        }

    def _files(self) -> dict[str, bytes | str]:
        findings = {"findings": [asdict(finding) for finding in self.findings]}
        return {TABLE: as_parquet(self.table), CURVES: as_parquet(self.curves), FINDINGS: as_text(findings)}


def opened_difference(folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Difference:
    """From a folder; `stored` is its manifest with checksums."""
    findings = findings_from(read_content(folder / FINDINGS, stored)["findings"])
    table = read_table(folder / TABLE, stored, SCHEMA)
    return Difference(table, read_table(folder / CURVES, stored, CURVE_SCHEMA), findings, manifest)
