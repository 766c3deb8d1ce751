"""The result of `capacity`: how many keys the model needs, the losses behind it, and whether geometry agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from ...results import TablesResult, as_csv, as_text, read_content, tables_from
from ...runs.loss import targets_words
from ...words.finding import findings_from
from ...words.names import DELETION, RENORMALISED

WAYS = (DELETION, RENORMALISED)
SUMMARY = "capacity.json"


def reported_way(ways: Sequence[str]) -> str:
    """The way that sentences on layers report: renormalised, unless only deletion was measured."""
    return RENORMALISED if RENORMALISED in ways else ways[0]


def at_equal_share(rows: pl.DataFrame, tau: float) -> pl.DataFrame:
    """The rows of this tau at the smallest allowed rise."""
    of_tau = rows.filter(pl.col("tau") == tau)
    return of_tau.filter(pl.col("allowed") == pl.col("allowed").min())


TABLE_SCHEMA: dict[str, Any] = {
    "layer": pl.Int32, "length": pl.Int32, "way": pl.String, "tau": pl.Float64, "allowed": pl.Float64,
    "capacity": pl.Float64, "low": pl.Float64, "high": pl.Float64, "share": pl.Float64, "monotone": pl.Boolean,
    "first": pl.Int32, "windows": pl.Int32, "separability_n": pl.Int32, "separability": pl.Float64,
    "separability_low": pl.Float64, "separability_high": pl.Float64, "control": pl.Float64,
}  # fmt: skip
CURVE_SCHEMA: dict[str, Any] = {
    "layer": pl.Int32, "length": pl.Int32, "way": pl.String, "n": pl.Int32, "loss": pl.Float64, "baseline": pl.Float64,
    "rise": pl.Float64, "low": pl.Float64, "high": pl.Float64,
}  # fmt: skip
GROWTH_SCHEMA: dict[str, Any] = {
    "layer": pl.Int32, "way": pl.String, "tau": pl.Float64, "allowed": pl.Float64, "exponent": pl.Float64,
    "low": pl.Float64, "high": pl.Float64, "lengths": pl.Int32,
}  # fmt: skip
CORRELATION_SCHEMA: dict[str, Any] = {
    "way": pl.String, "tau": pl.Float64, "allowed": pl.Float64, "length": pl.Int32, "separability_n": pl.Int32,
    "correlation": pl.Float64, "p_value": pl.Float64, "exact": pl.Boolean, "layers": pl.Int32,
}  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class Capacity(TablesResult):
    """The result of `capacity`.

    Attributes:
        table: a row for each length, way and tau of the whole model (layer is null), and of each layer truncated alone.
            `capacity` is N*: the least N at which the loss rises by at most `allowed`, which for the model is tau; a
            layer has a row for tau and one for its equal share, tau over the number of layers. `share` is N*/L.
            `monotone` is false where a smaller N also held; `first` is then the least N tried that holds, else N*
            rounded up. `separability` is that of `separability_n` selected tokens, `control` that of as many random
            ones, both on all windows; layers are truncated on `windows` of them, evenly spaced.
        curve: every loss that was evaluated, with the baseline, the relative rise and its interval.
        growth: the exponent of N* (before rounding up) in L for each way and allowed rise, of the model and of each
            layer; empty with one length.
        correlation: over layers, the rank correlation of capacity and separability at a common size, for each way,
            length and allowed rise.
        findings: what it means, each with its rule and numbers.
        manifest: versions, seeds, hashes, settings, self-check errors, times, what was skipped and why.
    """

    study: ClassVar[str] = "capacity"
    page: ClassVar[str] = "capacity.html"

    curve: pl.DataFrame = field(repr=False)
    growth: pl.DataFrame = field(repr=False)
    correlation: pl.DataFrame = field(repr=False)

    @property
    def layers(self) -> pl.DataFrame:
        """Rows of the single layers at their equal share of the smallest tau."""
        of_layers = self.table.filter(pl.col("layer").is_not_null())
        return at_equal_share(of_layers, min(self.manifest["settings"]["taus"]))

    @property
    def reported_way(self) -> str:
        """The way that sentences on layers report: renormalised, unless only deletion was measured."""
        return reported_way(self.manifest["settings"]["ways"])

    @property
    def scored(self) -> str:
        """Which targets the loss is over, in words."""
        return targets_words(self.manifest["settings"]["targets"])

    def as_json(self) -> dict[str, Any]:
        """Everything, tables as lists of rows."""
        return self._tables_and_findings(self._tables()) | {"manifest": dict(self.manifest)}

    def _files(self) -> dict[str, bytes | str]:
        """Every table as CSV, and all of it as one JSON file."""
        return as_csv(self._tables()) | {SUMMARY: as_text(self.as_json())}

    def _tables(self) -> dict[str, pl.DataFrame]:
        return {"table": self.table, "curve": self.curve, "growth": self.growth, "correlation": self.correlation}


def opened_capacity(folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Capacity:
    content = read_content(folder / SUMMARY, stored)
    schemas = {"table": TABLE_SCHEMA, "curve": CURVE_SCHEMA, "growth": GROWTH_SCHEMA, "correlation": CORRELATION_SCHEMA}
    findings = findings_from(content["findings"])
    return Capacity(**tables_from(content, schemas), findings=findings, manifest=manifest)
