"""How commands end: JSON, or table and paths, the path of the page last."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType


def print_json(found: Any) -> None:
    """JSON that every reader takes: it knows neither NaN nor infinity, so they become null."""
    typer.echo(json.dumps(_finite(found), indent=1, allow_nan=False))


def _finite(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _finite(value) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [_finite(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def show_page(page: Path, table: RenderableType, more: str, as_json: bool, quiet: bool) -> None:
    """On standard output, which with --json is the JSON's alone: then the paths go to standard error."""
    if quiet:
        if not as_json:
            typer.echo(page)
        return
    if not as_json:
        from rich.console import Console

        Console().print(table)
    if more:
        typer.echo(more, err=as_json)
    typer.echo(f"page: {page}", err=as_json)


def open_in_browser(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        typer.echo("abbe: no browser was found: open the page yourself", err=True)
