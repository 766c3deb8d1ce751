"""A table of text that terminal and page show alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TextTable:
    """Numbers as a person reads them, in rows as long as the columns are many."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    choose: str = ""  # what its first column names, where a page shows the rows of one of them at a time
