"""Results of studies: a table, a manifest, and common ways to save, show and reopen them."""

from .._files import finite
from ._estimate import Estimate
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
from ._tables import TablesResult, as_csv, as_rows, tables_from
from ._training import (
    STEPS,
    TRAINING_SCHEMA,
    StepsFile,
    Training,
    decoded_steps,
    encoded_step,
    kept_until,
    opened_training,
    packed,
    unpacked,
)

__all__ = [
    "FORMAT",
    "MANIFEST",
    "SCHEMA",
    "STEPS",
    "TABLE",
    "TRAINING_SCHEMA",
    "Estimate",
    "Result",
    "Run",
    "StepsFile",
    "TablesResult",
    "Training",
    "as_csv",
    "as_parquet",
    "as_rows",
    "as_text",
    "checked_manifest",
    "decoded_steps",
    "encoded_step",
    "finite",
    "kept_until",
    "open_run",
    "opened_run",
    "opened_training",
    "packed",
    "read_content",
    "read_manifest",
    "read_table",
    "tables_from",
    "unpacked",
]
