"""A report in the terminal: the numbers that matter, what they mean, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...words.finding import NOTICE, Finding, KeyNumber
from ...words.manifest import model_name, precision_of
from ...words.numbers import interval
from .._shared.page import SIGNS
from .._shared.terminal import bullets, plain, skipped_lines
from .page import beside_value, measured_line

_INDENT = "     "
_COLOURS = {"good": "bold green", "look": "bold yellow", "bad": "bold red"}

if TYPE_CHECKING:
    from ...studies import Report


def report_table(report: Report) -> RenderableType:
    """How selective is the attention of a model?

    The answer, what to do next, the five key numbers each with what high and low mean, the verdicts, and advice.

    Args:
        report: from `abbe.report`.

    Examples:
        >>> from rich import print
        >>> report = abbe.report(lengths=32, windows=2, queries=4, progress=False)
        >>> print(abbe.views.report_table(report))
        How selective is the attention of abbe-gpt2-5M?
        ...
    """
    parts: list[RenderableType] = [
        Text(f"How selective is the attention of {plain(model_name(report.run.manifest))}?", style="bold"),
        Text(plain(" ".join([measured_line(report), precision_of(report.run.manifest)]).strip()), style="dim"),
        Text(""),
        *_answer(report),
        Text(""),
        _numbers(report),
        Text(""),
    ]
    parts += _findings("Verdict", report.verdicts)
    parts += _findings("Advice", report.advice, "" if report.learned else NOTICE)
    return Group(*parts, *skipped_lines(report.run.manifest))


@dataclass(frozen=True)
class _Command:
    """A command line; a long one is broken by backslashes, so that it can be pasted as it is."""

    line: str

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for part in (shlex.quote(plain(part)) for part in shlex.split(self.line)):
            if lines[-1] and len(_INDENT + lines[-1]) + len(part) + 3 > options.max_width:
                lines.append("")
            lines[-1] += f" {part}" if lines[-1] else part
        for place, line in enumerate(lines, 1):
            end = "" if place == len(lines) else " \\"
            yield Text(_INDENT + line + end, style="cyan", overflow="fold")


def _answer(report: Report) -> list[RenderableType]:
    """The sentence, and what to do next with its commands."""
    answer = report.answer
    parts: list[RenderableType] = [
        Text.assemble((f"{SIGNS[answer.grade][0]} ", _COLOURS[answer.grade]), (plain(answer.sentence), "bold"))
    ]
    for place, step in enumerate(report.next_steps(), 1):
        parts.append(Padding(Text(f"{place}. {plain(step.words)}"), (0, 0, 0, 2)))
        parts.append(_Command(step.command))
    return parts


def _numbers(report: Report) -> Table:
    """Each number with its interval, limit and control, its meaning below."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=False, max_width=24)
    table.add_column()
    for key in report.numbers:
        value = Text.assemble((plain(key.shown), "bold"), (_beside(key), "dim"))
        table.add_row(Text(plain(key.name)), Group(value, Text(plain(key.meaning), style="dim")))
    return table


def _beside(key: KeyNumber) -> str:
    """Interval, limit and control, if known."""
    named = (("limit", key.limit), ("control", key.control))
    known = [f"{name} {beside_value(key, value)}" for name, value in named if value is not None]
    ends = interval(key.low, key.high, lambda end: beside_value(key, end))
    words = ", ".join(part for part in (ends, *known) if part)
    return f"  ({words})" if words else ""


def _findings(title: str, findings: Sequence[Finding], notice: str = "") -> list[RenderableType]:
    if not findings:
        return []
    before = [Padding(Text(notice, style="bold yellow"), (0, 0, 0, 2))] if notice else []
    return [Text(title, style="bold"), *before, *bullets(findings), Text("")]
