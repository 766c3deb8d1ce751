"""What all tables in the terminal share."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..words.finding import Finding


@dataclass(frozen=True)
class TextTable:
    """Numbers as a person reads them; every row is as long as `columns`.

    Attributes:
        title: above it.
        columns: their names; all but the first and those in `left` are right-aligned.
        rows: of cells.
        note: below it.
        choose: what its first column names, if a page shows one of them at a time.
        on: where it is shown: "terminal", "page", "card".
        breaks: a cell of the terminal continues on a new line before each of these.
        left: columns that are left-aligned.
        whole: columns that are never wrapped.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    choose: str = ""
    on: tuple[str, ...] = ("terminal", "page", "card")
    breaks: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


def plain(text: str) -> str:
    """Without characters that control a terminal or the writing direction; joiners in emoji stay."""
    kept = (c if c == "\u200d" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else " " for c in text)
    return "".join(kept)


def new_table(*right: str, **options: Any) -> Table:
    """A table with a rule below its head only, and these columns, right-aligned."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, **({"pad_edge": False} | options))
    for name in right:
        table.add_column(name, justify="right")
    return table


def draw(table: TextTable) -> Table:
    """Draw it as a table of the terminal."""
    drawn = new_table(title=table.title or None, title_justify="left")
    for number, name in enumerate(table.columns):
        aligned = "left" if number == 0 or name in table.left else "right"
        drawn.add_column(name, justify=aligned, no_wrap=name in table.whole, overflow="fold")  # type: ignore[arg-type]
    for row in table.rows:
        cells = list(map(plain, row))
        for mark in table.breaks:
            cells = [cell.replace(f" {mark}", f"\n{mark}") for cell in cells]
        drawn.add_row(*map(Text, cells))
    return drawn


def bullets(findings: Iterable[Finding]) -> list[Padding]:
    return [Padding(Text(f"• {plain(finding.sentence)}"), (0, 0, 0, 2)) for finding in findings]


def skipped_lines(manifest: Mapping[str, Any]) -> list[Text]:
    return [Text(f"skipped: {plain(str(why))}", style="dim") for why in manifest.get("skipped") or ()]
