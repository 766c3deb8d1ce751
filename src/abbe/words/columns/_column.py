"""A column, and a table of columns, as a person reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: in the data frame.
        label: in tables and pages.
        meaning: what high and low or its values mean.
        share: shown in percent.
        signed: shown with its sign.
        interval: two more columns hold its ends: NAME_low and NAME_high.
    """

    name: str
    label: str
    meaning: str
    share: bool = False
    signed: bool = False
    interval: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of the column and of the ends of its interval."""
        return (self.name, f"{self.name}_low", f"{self.name}_high") if self.interval else (self.name,)


@dataclass(frozen=True)
class Table:
    """A table of a result.

    Attributes:
        study: its command.
        name: the attribute of the result that holds it.
        rows: what a row is.
        columns: in order.
    """

    study: str
    name: str
    rows: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Every column in the data frame."""
        return tuple(name for column in self.columns for name in column.names)


def column(name: str, meaning: str, *, interval: bool = False) -> Column:
    """A column whose label is its name."""
    return Column(name, name.replace("_", " "), meaning, interval=interval)


LAYER = column("layer", "in the order in which the model calls its layers, from 0; null for all heads together")
HEAD = column("head", "query head of the layer, from 0; null for all heads together")
LENGTH = column("length", "tokens per window; null for rows of no single length")
LOW = column("low", "lower end of the interval; null if there is none, as from a single window")
HIGH = column("high", "upper end of the interval")
EACH_HEAD = (column("layer", "in the order of the model, from 0"), column("head", "query head of the layer, from 0"))
