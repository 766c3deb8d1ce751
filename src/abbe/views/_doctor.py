"""The checks of `abbe doctor` in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from ._shared.terminal import new_table, plain

if TYPE_CHECKING:
    from ..studies import Check

_STYLES = {"ok": "green", "warning": "yellow", "missing": "dim", "broken": "bold red"}


def doctor_table(checks: Sequence[Check]) -> RenderableType:
    """Can abbe work here, and what should be mended?

    One line per check with advice where it is not ok, then one sentence.

    Args:
        checks: from `abbe.doctor`.

    Examples:
        >>> checks = abbe.doctor()[:1]
        >>> from rich import print
        >>> print(abbe.views.doctor_table(checks))
        Python ok ...
        Everything abbe needs is installed.
    """
    table = new_table(show_header=False)
    for check in checks:
        words = Text(plain(check.detail))
        if check.advice:
            words.append(f"\n-> {plain(check.advice)}", style="italic")
        table.add_row(Text(check.name), Text(check.state, style=_STYLES[check.state]), words)
    return Group(table, Text(_summary(checks), style="bold"))


def _summary(checks: Sequence[Check]) -> str:
    if failed := [check.name for check in checks if check.failed]:
        return f"abbe will not work properly: fix {', '.join(failed)}."
    fine = "Everything abbe needs is installed"
    warned = [check.name for check in checks if check.state == "warning"]
    return f"{fine}; check {', '.join(warned)}." if warned else f"{fine}."
