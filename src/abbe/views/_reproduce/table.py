"""A reproduction in the terminal: the paper's statements beside what the model shows, and the times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .._shared.terminal import new_table, plain, skipped_lines
from .page import ANSWERS, READINGS_NOTE, facts, readings_rows, times

if TYPE_CHECKING:
    from ...studies import Reproduction

OTHER_MACHINE = "Not the paper's machine, and perhaps another model and fewer windows."
_STYLES = {"good": "green", "bad": "yellow", "soft": "dim"}


def reproduction_table(reproduction: Reproduction) -> RenderableType:
    """Which statements of the paper hold for this model?

    Each statement beside what was measured, critical N under every reading, and the times. A high critical N means that
    even large sets are selected, not random.

    Args:
        reproduction: from `abbe.reproduce`.

    Examples:
        >>> reproduction = abbe.reproduce(figures="2b", quick=True, windows=1, queries=4, progress=False)
        >>> from rich import print
        >>> print(abbe.views.reproduction_table(reproduction))
        model: abbe-gpt2-5M, ...
        ...
    """
    parts: list[RenderableType] = [
        Text.assemble((f"{name}: ", "bold"), plain(value)) for name, value in facts(reproduction)
    ]
    parts += [_claims(reproduction), Text(reproduction.answer, style="bold")]
    readings = readings_rows(reproduction)
    parts += [_readings(*readings), Text(READINGS_NOTE, style="dim")] if readings else []
    if times(reproduction):
        parts += [_times(reproduction), Text(OTHER_MACHINE, style="dim")]
    return Group(*parts, *skipped_lines(reproduction.manifest))


def _claims(reproduction: Reproduction) -> Table:
    table = new_table()
    table.add_column("topic", ratio=3, min_width=14)
    table.add_column("the paper says", ratio=5)
    table.add_column("this model shows", ratio=5)
    table.add_column("holds?", min_width=8, max_width=11)
    for claim in reproduction.claims:
        mark, role = ANSWERS[claim.answer]
        answer = Text(f"{mark} {claim.answer}", style=_STYLES[role])
        table.add_row(Text(plain(claim.topic)), Text(plain(claim.paper)), Text(plain(claim.measured)), answer)
        table.add_section()
    return table


def _readings(length: int, levels: list[str], rows: list[list[str]]) -> Table:
    title = f"Critical N under each reading, token embeddings, {length:,} tokens"
    table = new_table(title=title, title_justify="left")
    for name in ("expected distance", "test of", *(f"level {level}" for level in levels)):
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    return table


def _times(reproduction: Reproduction) -> Table:
    table = new_table("time here", "in the paper", first="")
    for name, ours, paper in times(reproduction):
        table.add_row(name, ours, paper)
    return table
