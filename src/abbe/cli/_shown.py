"""How commands end: JSON, or a table and paths, the page last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .._lazy import has

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..results import Result


def print_json(content: Any) -> None:
    """Strict JSON: NaN and infinity become null."""
    import json

    from .._files import finite

    typer.echo(json.dumps(finite(content), indent=1, allow_nan=False))


def print_table(table: RenderableType) -> None:
    from rich.console import Console

    Console().print(table)


def show_result(
    result: Result, folder: Path, *, figures: Path | None, as_json: bool, quiet: bool, opened: bool
) -> None:
    """The end of every study: JSON or a table, then the path of the page, which is written if the study did not.

    Without the extra `report` there is no page: the last path is the run folder.
    """
    from .. import views

    file = getattr(result, "file", None) if result.offers else None
    lines = [] if file is None else [f"{result.offers}: {file}"]
    if figures is None and result.figures_in and has("report"):
        figures = folder / result.figures_in
    if figures is not None:
        views.figures(result, figures)
        lines.append(f"figures: {figures}")
    page = folder / result.page
    has_page = page.is_file() or has("report")
    if has_page and not page.is_file():
        result.to_html(page)
    if as_json:
        typer.echo(result.to_json())
    last = f"page: {page}" if has_page else f'run: {folder} (its page needs abbe[report]: pip install "abbe[report]")'
    path = page if has_page else folder
    show_paths(path, views.terminal(result), [*lines, last], as_json, quiet)
    if opened and has_page:
        open_in_browser(page)


def show_paths(path: Path, table: RenderableType, lines: Sequence[str], as_json: bool, quiet: bool) -> None:
    """On standard output, which --json reserves for the JSON: then the lines go to standard error."""
    if quiet:
        if not as_json:
            typer.echo(path)
        return
    if not as_json:
        print_table(table)
    for line in lines:
        typer.echo(line, err=as_json)


def open_in_browser(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        typer.echo("abbe: no browser was found: open the page yourself", err=True)
