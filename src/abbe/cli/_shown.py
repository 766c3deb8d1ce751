"""How commands end: JSON, or table and paths, the path of the page last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..results import Result


def print_json(content: Any) -> None:
    """JSON that every reader takes."""
    import json

    from ..results import finite

    typer.echo(json.dumps(finite(content), indent=1, allow_nan=False))


def show_result(
    result: Result,
    table: RenderableType,
    folder: Path,
    *,
    as_json: bool,
    quiet: bool,
    opened: bool,
    lines: Sequence[str] = (),
) -> None:
    """The end of every study: JSON or a table, then the path of the page, which is written if the study did not."""
    page = folder / result.page
    if not page.is_file():
        result.to_html(page)
    if as_json:
        typer.echo(result.to_json())
    show_page(page, table, lines, as_json, quiet)
    if opened:
        open_in_browser(page)


def show_page(page: Path, table: RenderableType, lines: Sequence[str], as_json: bool, quiet: bool) -> None:
    """On standard output, which with --json is the JSON's alone: then the paths go to standard error."""
    if quiet:
        if not as_json:
            typer.echo(page)
        return
    if not as_json:
        from rich.console import Console

        Console().print(table)
    for line in (*lines, f"page: {page}"):
        typer.echo(line, err=as_json)


def open_in_browser(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        typer.echo("abbe: no browser was found: open the page yourself", err=True)
