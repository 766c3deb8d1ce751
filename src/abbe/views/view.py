"""A view: what people see of a result, as data. Four renderers show it: terminal, page, card (notebooks) and figures.

A result makes its view (`Result.view`); nothing here knows any study.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from .._errors import AbbeError
from .._lazy import need
from ..words.finding import Answer, Finding, Step
from ..words.manifest import for_others, part_of, without_folder
from ..words.numbers import duration
from .text import TextTable, bullets, draw, plain, skipped_lines
from .theme import THEMES, ThemeName

if TYPE_CHECKING:
    from .charts import Spec

Charts = Callable[[ThemeName], Mapping[str, "Spec"]]
SIGNS = {"good": ("✓", "good"), "look": ("!", "to look at"), "bad": ("✕", "bad")}  # readable without colours
_STYLES = {"good": "bold green", "look": "bold yellow", "bad": "bold red"}
_INDENT = "     "
_SCRIPTS = ("page.js", "charts.js", "sorting.js", "study.js")
_MOST_ROWS = 60  # of a table on a card


@dataclass(frozen=True)
class Page:
    """A page of its own, where findings, charts and tables are not enough.

    Attributes:
        template: its file.
        scripts: that run in this order, after Vega.
        values: for the template, made when the page is.
        vega: whether it draws charts of Vega.
    """

    template: str
    scripts: Sequence[str]
    values: Callable[[], Mapping[str, Any]]
    vega: bool = True


@dataclass(frozen=True, kw_only=True)
class View:
    """What people see of a result.

    Attributes:
        study: the command that made it.
        question: that it answers, the title.
        about: lines that say what was measured on what.
        answer: one sentence with a grade; None if the findings are the answer.
        steps: what to do next, with the commands.
        findings: sentences with their rules and numbers.
        heading: above the findings.
        tables: with numbers as people read them; each says where it is shown.
        charts: by name, for one theme; None if there are none.
        manifest: of the result.
        page: with a template of its own; None for the usual one.
        more: further lines of the terminal, below the findings.
    """

    study: str
    question: str
    about: Sequence[str] = ()
    answer: Answer | None = None
    steps: Sequence[Step] = ()
    findings: Sequence[Finding] = ()
    heading: str = "What it means"
    tables: Sequence[TextTable] = ()
    charts: Charts | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)
    page: Page | None = None
    more: Sequence[RenderableType] = ()

    def drawn(self, *themes: ThemeName) -> dict[ThemeName, Mapping[str, Spec]]:
        """Its charts in these themes, by default in all; none if it has none.

        Args:
            themes: "light", "dark" or both.
        """
        return {theme: self.charts(theme) if self.charts else {} for theme in themes or THEMES}


class Viewed(Protocol):
    """Anything with a view, such as a result."""

    def view(self) -> View: ...


def _view_of(shown: View | Viewed, renderer: str = "") -> View:
    """The view for a renderer; those with a name draw, which takes an extra."""
    if renderer:
        need(f"abbe.views.{renderer}", "report")
    return shown if isinstance(shown, View) else shown.view()


def _tables(view: View, medium: str) -> list[TextTable]:
    return [table for table in view.tables if medium in table.on and table.rows]


# -- Terminal ---------------------------------------------------------------------------------------------------------


def terminal(shown: View | Viewed) -> RenderableType:
    """A result for the terminal: question, answer, what to do next, findings, tables.

    Args:
        shown: a result, or a view.

    Returns:
        Something that `rich.print` prints, at most as wide as the terminal.

    Examples:
        >>> run = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False)
        >>> from rich import print
        >>> print(abbe.views.terminal(run))
        How do the heads of abbe-gpt2-5M attend?
        ...
    """
    view = _view_of(shown)
    parts: list[RenderableType] = [Text(plain(view.question), style="bold")]
    parts += [Text(plain(line), style="dim") for line in view.about]
    if view.answer is not None:
        sign, style = SIGNS[view.answer.grade][0], _STYLES[view.answer.grade]
        parts += [Text(""), Text.assemble((f"{sign} ", style), (plain(view.answer.sentence), "bold"))]
    steps: list[RenderableType] = []
    for number, step in enumerate(view.steps, 1):
        steps += [Padding(Text(f"{number}. {plain(step.words)}"), (0, 0, 0, 2)), _Command(step.command)]
    parts += steps if view.answer is not None else []
    if view.findings:
        parts += [Text(""), Text(view.heading, style="bold"), *bullets(view.findings)]
    if steps and view.answer is None:  # the findings are the answer, which comes first
        parts += [Text(""), Text("What to do next", style="bold"), *steps]
    parts += view.more
    for table in _tables(view, "terminal"):
        parts += [Text(""), draw(table)]
        parts += [Text(plain(table.note), style="dim")] if table.note else []
    return Group(*parts, *skipped_lines(view.manifest))


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
        for number, line in enumerate(lines, 1):
            end = "" if number == len(lines) else " \\"
            yield Text(_INDENT + line + end, style="cyan", overflow="fold")


# -- Page -------------------------------------------------------------------------------------------------------------


def page(shown: View | Viewed) -> str:
    """The page of a result: one self-contained HTML file that works offline. `Result.to_html` writes it.

    Args:
        shown: a result, or a view.

    Returns:
        The text of the file.

    Examples:
        >>> run = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False)
        >>> abbe.views.page(run)[:15]
        '<!doctype html>'
    """
    view = _view_of(shown, "page")
    # Loaded when something is drawn: altair and jinja2 belong to an extra, and are slow to import.
    from .html import as_json, both_themes, manifest_parts, numbers_of, render, script, vega

    manifest = for_others(view.manifest)
    common: dict[str, Any] = {
        "study": view.study,
        "question": view.question,
        "about": view.about,
        "answer": view.answer,
        "steps": [Step(step.words, _passed_on(step.command)) for step in view.steps],
        "sign": SIGNS[view.answer.grade] if view.answer else None,
        "heading": view.heading,
        "findings": [(finding, numbers_of(finding.numbers)) for finding in view.findings],
        "tables": _tables(view, "page"),
        "took": duration(part_of(manifest, "seconds").get("total")),
        **manifest_parts(manifest),
    }
    if view.page is not None:
        scripts = [*([vega()] if view.page.vega else []), *map(script, view.page.scripts)]
        return render(view.page.template, scripts=scripts, **(common | dict(view.page.values())))
    charts = view.drawn()
    scripts = [*([vega()] if view.charts else []), *map(script, _SCRIPTS)]
    headings, drawn = _headings(charts["light"]), as_json(both_themes(charts))
    return render("study.html.jinja", scripts=scripts, **common, charts_shown=headings, charts=drawn)


def _passed_on(command: str) -> str:
    """Pages are passed on, so they must not show where files lie on this machine."""
    return shlex.join(
        f"file:{without_folder(word[5:])}" if word.startswith("file:") else without_folder(word)
        for word in shlex.split(command)
    )


def _headings(charts: Mapping[str, Spec]) -> list[dict[str, Any]]:
    """Name, columns, and with several charts the heading of each: scripts draw a chart without its title."""
    several = len(charts) > 1
    return [
        {
            "name": name,
            "columns": chart["columns"] if several else 2,
            "title": chart["title"]["text"] if several else "",
            "about": chart["title"]["subtitle"] if several else [],
        }
        for name, chart in charts.items()
    ]


# -- Card -------------------------------------------------------------------------------------------------------------


def card(shown: View | Viewed) -> str:
    """What a notebook shows of a result: findings, the first chart as SVG without a script, and tables.

    Args:
        shown: a result, or a view.

    Returns:
        HTML to be put into a page.

    Examples:
        >>> run = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False)
        >>> abbe.views.card(run)[:4]
        '<div'
    """
    view = _view_of(shown, "card")
    # Of the extra `report`.
    from .charts import svg
    from .html import render

    charts = map(svg, list(view.drawn("light")["light"].values())[:1])
    return render("card.html.jinja", view=view, charts=charts, tables=_tables(view, "card"), most=_MOST_ROWS)


# -- Figures ----------------------------------------------------------------------------------------------------------


def figures(shown: View | Viewed, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw the charts of a result as PNG, SVG and PDF, light and dark.

    Args:
        shown: a result, or a view.
        folder: for the files; created if missing.

    Returns:
        The paths of the files.

    Raises:
        AbbeError: the folder is a file.

    Examples:
        >>> run = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False)
        >>> sorted(path.name for path in abbe.views.figures(run, "figures"))[:3]
        ['growth-dark.pdf', 'growth-dark.png', 'growth-dark.svg']
    """
    view, target = _view_of(shown, "figures"), Path(folder)
    from .charts import drawings  # of the extra `report`

    try:
        target.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise AbbeError(f"{target} is a file: give a folder for the figures") from None
    charts, written = view.drawn(), []
    for name in charts["light"]:
        for theme, of_theme in charts.items():
            for ending, drawn in drawings(of_theme[name]).items():
                written.append(target / f"{name}{'-dark' if theme == 'dark' else ''}.{ending}")
                written[-1].write_bytes(drawn)
    return written
