"""Results of studies: a table, a manifest, and common ways to save, show and reopen them."""

from .._files import finite
from ._result import (
    FORMAT,
    MANIFEST,
    Estimate,
    Result,
    as_parquet,
    as_text,
    checked_manifest,
    read_content,
    read_manifest,
    read_table,
)
from ._run import RUN_COLUMNS, SCHEMA, TABLE, Run, open_run

__all__ = [
    "FORMAT",
    "MANIFEST",
    "RUN_COLUMNS",
    "SCHEMA",
    "TABLE",
    "Estimate",
    "Result",
    "Run",
    "as_parquet",
    "as_text",
    "checked_manifest",
    "finite",
    "open_run",
    "read_content",
    "read_manifest",
    "read_table",
]
