"""The checks of `abbe doctor` in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from ._shared.terminal import new_table

if TYPE_CHECKING:
    from ..studies import Check


_STYLES = {"ok": "green", "warning": "yellow", "missing": "dim", "broken": "bold red"}


def doctor_table(checks: Sequence[Check]) -> RenderableType:
    """A line for each, with what to do below it, and a sentence on whether abbe can work."""
    table = new_table()
    for column in ("check", "state"):
        table.add_column(column, no_wrap=True)
    table.add_column("found, and what to do")
    group = None
    for check in checks:
        if check.group != group:
            group = check.group
            table.add_section()
            table.add_row(Text(group, style="bold"))
        table.add_row(Text(f"  {check.name}"), Text(check.state, style=_style(check)), _words(check))
    return Group(table, Text(_summary(checks), style="bold"))


def _style(check: Check) -> str:
    return "bold red" if check.failed else _STYLES[check.state]


def _words(check: Check) -> Text:
    words = Text(check.found)
    return words.append(f"\n-> {check.advice}", style="italic") if check.advice else words


def _summary(checks: Sequence[Check]) -> str:
    failed = [check.name for check in checks if check.failed]
    if failed:
        return f"abbe cannot work as it should: see to {', '.join(failed)}."
    warned = [check.name for check in checks if check.state == "warning"]
    fine = "Everything that abbe needs is there"
    return f"{fine}; look at {', '.join(warned)}." if warned else f"{fine}."
