"""How commands end: JSON, or table and paths, the path of the page last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .._lazy import has

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..results import Result


# The functions of abbe.views are called by the result where that is not the name of the study.
_RESULTS = {
    "diagnose": "diagnosis",
    "report --each": "reports",
    "reproduce": "reproduction",
    "calibrate": "calibration",
}


def print_json(content: Any) -> None:
    """JSON that every reader takes."""
    import json

    from .._files import finite

    typer.echo(json.dumps(finite(content), indent=1, allow_nan=False))


def show_result(
    result: Result, folder: Path, *, figures: Path | None, as_json: bool, quiet: bool, opened: bool,
    lines: Sequence[str] = (),
) -> None:  # fmt: skip
    """The end of every study: JSON or a table, then the path of the page, which is written if the study did not.

    Without the extra `report` there is no page: the last path is that of the run.
    """
    from .. import views

    name = _RESULTS.get(result.study, result.study)
    if figures is not None:
        getattr(views, f"save_{name}_figures")(result, figures)
        lines = [*lines, f"figures: {figures}"]
    page: Path | None = folder / result.page
    if page is not None and not page.is_file():
        page = page if has("report") else None
        if page is not None:
            result.to_html(page)
    if as_json:
        typer.echo(result.to_json())
    last = f"page: {page}" if page else f'run: {folder} (its page needs abbe[report]: pip install "abbe[report]")'
    show_paths(page or folder, getattr(views, f"{name}_table")(result), [*lines, last], as_json, quiet)
    if opened and page is not None:
        open_in_browser(page)


def show_paths(path: Path, table: RenderableType, lines: Sequence[str], as_json: bool, quiet: bool) -> None:
    """On standard output, which with --json is the JSON's alone: then the lines go to standard error."""
    if quiet:
        if not as_json:
            typer.echo(path)
        return
    if not as_json:
        from rich.console import Console

        Console().print(table)
    for line in lines:
        typer.echo(line, err=as_json)


def open_in_browser(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        typer.echo("abbe: no browser was found: open the page yourself", err=True)
