"""How commands end: JSON, or a table and paths, the page last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .._files import finite
from .._lazy import has

if TYPE_CHECKING:
    from ..results import Result
    from ..views.view import Viewed


def print_json(content: Any) -> None:
    """Strict JSON: NaN and infinity become null."""
    typer.echo(json.dumps(finite(content), indent=1, allow_nan=False))


def print_result(result: Viewed) -> None:
    from rich.console import Console  # not for help

    from ..views import terminal

    Console().print(terminal(result))


def show_result(result: Result, page: Path, *, figures: Path | None, as_json: bool, quiet: bool, opened: bool) -> None:
    """The end of every study: JSON or a table, then the path of the page, which is written if the study did not.

    All paths are on standard output, which --json reserves for the JSON: then they go to standard error. Without the
    extra `report` there is no page: the last path is the run folder.
    """
    from .. import views  # rich is loaded here

    folder, file = page.parent, getattr(result, "file", None) if result.offers else None
    lines = [] if file is None else [f"{result.offers}: {file}"]
    if figures is None and result.figures_in and has("report"):
        figures = folder / result.figures_in
    if figures is not None:
        views.figures(result, figures)
        lines.append(f"figures: {figures}")
    has_page = page.is_file() or has("report")
    if has_page and not page.is_file():
        result.to_html(page)
    missing = f'run: {folder} (its page needs abbe[report]: pip install "abbe[report]")'
    lines.append(f"page: {page}" if has_page else missing)
    if as_json:
        typer.echo(result.to_json())
    elif quiet:
        typer.echo(page if has_page else folder)
    else:
        print_result(result)
    for line in () if quiet else lines:
        typer.echo(line, err=as_json)
    if opened and has_page:
        open_in_browser(page)


def open_in_browser(page: Path) -> None:
    import webbrowser  # rarely needed

    if not webbrowser.open(page.resolve().as_uri()):
        typer.echo("abbe: no browser was found: open the page yourself", err=True)
