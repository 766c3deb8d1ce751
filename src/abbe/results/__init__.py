"""What studies give: a table, a manifest, and the same ways to save, show and open them again."""

from .._stored import finite
from ._result import (
    FORMAT,
    MANIFEST,
    Result,
    as_parquet,
    as_text,
    checked_manifest,
    read_content,
    read_manifest,
    read_table,
)
from ._run import SCHEMA, TABLE, Run, open_run, opened_run

__all__ = [
    "FORMAT",
    "MANIFEST",
    "SCHEMA",
    "TABLE",
    "Result",
    "Run",
    "as_parquet",
    "as_text",
    "checked_manifest",
    "finite",
    "open_run",
    "opened_run",
    "read_content",
    "read_manifest",
    "read_table",
]
