"""Tables of results, declared once: what a row is, and of every column its name, type and meaning.

The declaration gives the schema, the files that are written and read, the labels of pages and the reference of the
docs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl

from .numbers import MISSING, number, percent, with_interval

Cell = tuple[str, Callable[[Any], str]]  # a column of a table for people: its heading, and its text for a row
FRAME = "frame"  # in the metadata of a field of a result
_TYPES: dict[Any, Any] = {int: pl.Int32, float: pl.Float64, str: pl.String, bool: pl.Boolean}


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: in the data frame.
        dtype: its type: int, float, str, bool, or one of polars.
        meaning: what it holds; what high and low, or its values, mean.
        label: in tables and pages; by default the name with spaces.
        share: shown in percent.
        signed: shown with its sign.
        interval: two more columns hold its ends: NAME_low and NAME_high.
        show: how people read a value; by default a share in whole percent, other numbers with three digits.
    """

    name: str
    dtype: Any
    meaning: str
    label: str = ""
    share: bool = False
    signed: bool = False
    interval: bool = False
    show: Callable[[Any], str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name.replace("_", " "))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the column and of the ends of its interval."""
        return (self.name, f"{self.name}_low", f"{self.name}_high") if self.interval else (self.name,)

    def text(self, row: Mapping[str, Any], missing: str = MISSING) -> str:
        """ "3.21 (3.1 to 3.3)": the value in a row as people read it, with its interval."""
        value, low, high = (*(row[name] for name in self.names), None, None)[:3]
        show = self.show or (percent if self.share else _plainly)
        return missing if value is None else with_interval(value, low, high, show)


def _plainly(value: Any) -> str:
    return number(value, 3) if not isinstance(value, bool) else "✓ yes" if value else "✗ no"


@dataclass(frozen=True)
class Frame:
    """A table of a result.

    Attributes:
        rows: what a row is.
        columns: in order.
        file: a Parquet file for a large table; others are written as CSV, and read from the JSON file of the result.
    """

    rows: str
    columns: tuple[Column, ...]
    file: str = ""

    @cached_property
    def schema(self) -> dict[str, Any]:
        """Types by column, as polars takes them."""
        return {name: _TYPES.get(column.dtype, column.dtype) for column in self.columns for name in column.names}

    def __getitem__(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def of(self, rows: Iterable[Mapping[str, Any] | Sequence[Any]]) -> pl.DataFrame:
        """The table of these rows: dictionaries, which may lack columns that are null, or sequences in order."""
        listed = list(rows)
        if listed and isinstance(listed[0], Mapping):
            listed = [tuple(row.get(name) for name in self.schema) for row in listed]  # type: ignore[union-attr]
        return pl.DataFrame(listed, schema=self.schema, orient="row")


def frame(rows: str, *columns: Column, file: str = "") -> Any:
    """A field of a result that holds a table, declared by its columns.

    Args:
        rows: what a row is.
        columns: in order.
        file: a Parquet file for a large table.
    """
    return field(repr=False, metadata={FRAME: Frame(rows, columns, file)})


column = Column  # beside `frame`, in declarations
LAYER = column("layer", int, "in the order in which the model calls its layers, from 0; null for all heads together")
HEAD = column("head", int, "query head of the layer, from 0; null for all heads together")
LENGTH = column("length", int, "tokens per window; null for rows of no single length")
LOW = column("low", float, "lower end of the interval; null if there is none, as from a single window or seed")
HIGH = column("high", float, "upper end of the interval")
EACH_HEAD = (
    column("layer", int, "in the order of the model, from 0"),
    column("head", int, "query head of the layer, from 0"),
)
