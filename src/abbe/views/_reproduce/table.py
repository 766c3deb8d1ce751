"""A reproduction in the terminal: the paper's statements beside what the model shows, and the times."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .page import ANSWERS, READINGS_NOTE, count, facts, readings_rows, times

if TYPE_CHECKING:
    from ...studies import Reproduction

OTHER_MACHINE = "Not the paper's machine, and perhaps another model and fewer windows."
_STYLES = {"good": "green", "bad": "yellow", "soft": "dim"}


def reproduction_table(reproduction: Reproduction) -> RenderableType:
    """What was measured, the statements, the times; readable from 80 columns on."""
    parts: list[RenderableType] = [
        Text.assemble((f"{name}: ", "bold"), plain(value)) for name, value in facts(reproduction)
    ]
    parts += [_claims(reproduction), Text(count(reproduction.claims), style="bold")]
    readings = readings_rows(reproduction)
    parts += [_readings(*readings), Text(READINGS_NOTE, style="dim")] if readings else []
    if times(reproduction):
        parts += [_times(reproduction), Text(OTHER_MACHINE, style="dim")]
    skipped = [Text(f"skipped: {plain(str(why))}") for why in reproduction.manifest.get("skipped", ())]
    return Group(*parts, *skipped)


def _claims(reproduction: Reproduction) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, show_lines=False, expand=False)
    table.add_column("topic", ratio=3, min_width=14)
    table.add_column("the paper says", ratio=5)
    table.add_column("this model shows", ratio=5)
    table.add_column("holds?", min_width=8, max_width=11)
    for claim in reproduction.claims:
        mark, role = ANSWERS[claim.answer]
        answer = Text(f"{mark} {claim.answer}", style=_STYLES[role])
        table.add_row(Text(plain(claim.topic)), Text(plain(claim.paper)), Text(plain(claim.found)), answer)
        table.add_section()
    return table


def _readings(length: int, levels: list[str], rows: list[list[str]]) -> Table:
    title = f"Critical N under each reading, token embeddings, {length:,} tokens"
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, title=title, title_justify="left")
    for name in ("expected distance", "test of", *(f"level {level}" for level in levels)):
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    return table


def _times(reproduction: Reproduction) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("")
    table.add_column("time here", justify="right")
    table.add_column("in the paper", justify="right")
    for name, ours, paper in times(reproduction):
        table.add_row(name, ours, paper)
    return table


def plain(text: str) -> str:
    """Without characters that steer a terminal or turn the direction of writing; joiners in emoji stay."""
    kept = (c if c == "\u200d" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else " " for c in text)
    return "".join(kept)
