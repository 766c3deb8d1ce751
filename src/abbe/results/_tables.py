"""Results of several tables and sentences about them: how they are written and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import polars as pl

from ..words.finding import Finding
from ._result import Result


@dataclass(frozen=True, eq=False, kw_only=True)
class TablesResult(Result):
    """`table`, findings and manifest, in addition to the tables of the study.

    Attributes:
        table: the main table.
        findings: what the tables mean, each with its rule and numbers.
        manifest: model, text, settings, times, and what was skipped.
    """

    table: pl.DataFrame = field(repr=False)
    findings: tuple[Finding, ...]
    manifest: Mapping[str, Any] = field(repr=False)

    def _tables_and_findings(self, tables: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
        """Tables as lists of rows, and the findings."""
        return as_rows(tables) | {"findings": [asdict(finding) for finding in self.findings]}


def as_rows(tables: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
    """Tables as lists of rows, for JSON.

    Args:
        tables: by name.

    Returns:
        Lists of rows by the same names.

    Examples:
        >>> import polars as pl
        >>> abbe.results.as_rows({"table": pl.DataFrame({"n": [1, 2]})})
        {'table': [{'n': 1}, {'n': 2}]}
    """
    return {name: table.to_dicts() for name, table in tables.items()}


def as_csv(tables: Mapping[str, pl.DataFrame]) -> dict[str, bytes | str]:
    """A CSV file for each table.

    Args:
        tables: by name.

    Returns:
        Contents by file name.

    Examples:
        >>> import polars as pl
        >>> list(abbe.results.as_csv({"table": pl.DataFrame({"n": [1, 2]})}))
        ['table.csv']
    """
    return {f"{name}.csv": table.write_csv() for name, table in tables.items()}


def tables_from(content: Mapping[str, Any], schemas: Mapping[str, Mapping[str, Any]]) -> dict[str, pl.DataFrame]:
    """Tables from lists of rows; a row may lack entries that are null.

    Args:
        content: with the rows, by name.
        schemas: columns and their types, by name of the table.

    Returns:
        Tables by name.

    Examples:
        >>> import polars as pl
        >>> schemas = {"table": {"n": pl.Int64, "low": pl.Float64}}
        >>> abbe.results.tables_from({"table": [{"n": 1}]}, schemas)["table"].shape
        (1, 2)
    """
    return {name: pl.DataFrame(content[name], schema=schema, orient="row") for name, schema in schemas.items()}
