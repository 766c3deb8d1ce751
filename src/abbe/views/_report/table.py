"""A report in the terminal: the numbers that matter, what they mean, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...studies._report.next_steps import next_steps
from ...studies._report.result import Finding, KeyNumber, Report
from ...studies._report.untrained import NOTICE
from .._reproduce.table import plain
from .._shared.words import interval, shown
from .page import SIGNS, measured_line, model_name

_INDENT = "     "
_COLOURS = {"good": "bold green", "look": "bold yellow", "bad": "bold red"}


def report_table(report: Report) -> RenderableType:
    """What was measured, the answer, what to do, the five numbers, the verdicts, the advice; from 80 columns on."""
    parts: list[RenderableType] = [
        Text(f"How selective is the attention of {plain(model_name(report.run.manifest))}?", style="bold"),
        Text(plain(measured_line(report)), style="dim"),
        Text(""),
        *_answer(report),
        Text(""),
        _numbers(report),
        Text(""),
    ]
    parts += _findings("Verdict", report.verdicts)
    parts += _findings("Advice", report.advice, "" if report.learned else NOTICE)
    skipped = [Text(f"skipped: {plain(str(why))}", style="dim") for why in report.run.manifest.get("skipped") or ()]
    return Group(*parts, *skipped)


@dataclass(frozen=True)
class _Command:
    """A command line; one that is too long goes on after a backslash, so that it can be pasted as it is."""

    line: str

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for part in (shlex.quote(plain(part)) for part in shlex.split(self.line)):
            if lines[-1] and len(_INDENT + lines[-1]) + len(part) + 3 > options.max_width:
                lines.append("")
            lines[-1] += f" {part}" if lines[-1] else part
        for number, line in enumerate(lines, 1):
            end = "" if number == len(lines) else " \\"
            yield Text(_INDENT + line + end, style="cyan", overflow="fold")


def _answer(report: Report) -> list[RenderableType]:
    """The sentence, and what to do next with its commands."""
    answer = report.answer
    parts: list[RenderableType] = [
        Text.assemble((f"{SIGNS[answer.grade][0]} ", _COLOURS[answer.grade]), (plain(answer.sentence), "bold"))
    ]
    for number, step in enumerate(next_steps(report, answer), 1):
        parts.append(Padding(Text(f"{number}. {plain(step.words)}"), (0, 0, 0, 2)))
        parts.append(_Command(step.command))
    return parts


def _numbers(report: Report) -> Table:
    """Each number with what stands beside it, and its meaning below."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=False, max_width=24)
    table.add_column()
    for number in report.numbers:
        told = Text.assemble((plain(number.shown), "bold"), (_beside(number), "dim"))
        table.add_row(Text(plain(number.name)), Group(told, Text(plain(number.meaning), style="dim")))
    return table


def _beside(number: KeyNumber) -> str:
    """Interval, limit and control, as far as they are known."""
    named = (("limit", number.limit), ("control", number.control))
    found = [f"{name} {shown(value, 3)}" for name, value in named if value is not None]
    told = ", ".join(part for part in (interval(number.low, number.high), *found) if part)
    return f"  ({told})" if told else ""


def _findings(title: str, findings: Sequence[Finding], notice: str = "") -> list[RenderableType]:
    if not findings:
        return []
    before = [Padding(Text(notice, style="bold yellow"), (0, 0, 0, 2))] if notice else []
    told = [Padding(Text(f"• {plain(finding.sentence)}"), (0, 0, 0, 2)) for finding in findings]
    return [Text(title, style="bold"), *before, *told, Text("")]
