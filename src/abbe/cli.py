"""The command line: thin, each command calls one study and shows what it found."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import __version__
from ._errors import AbbeError
from .bounds import catalogue
from .report import verify_page, verify_table
from .studies import verify as run_verify

app = typer.Typer(
    name="abbe",
    help="The resolution limit of attention: what can be proved, measured and lifted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        typer.echo(f"abbe {__version__}")
        raise typer.Exit


@app.command(
    epilog="Examples: [bold]abbe verify[/], [bold]abbe verify spectral spectral-paper --trials 20000[/], "
    "[bold]abbe verify --html theory.html[/], [bold]abbe verify --list[/]",
    rich_help_panel="Theory",
)
def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Statements to try; all of them if none is named.")] = None,
    trials: Annotated[int, typer.Option(help="Random draws a statement; the search grows with it.")] = 2000,
    seed: Annotated[int, typer.Option(help="Same seed, same draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write the table as one offline page.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="Only list the statements.")] = False,
) -> None:
    """Try every bound: random draws and a search for the worst case.

    Exit code 0 when every shipped bound holds and every statement marked refuted is refuted again, else 1.
    """
    if listing:
        for statement in catalogue():
            typer.echo(f"{statement.name:28} {statement.status:14} {statement.text}")
        return
    columns = TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("verify", total=len(names or catalogue()))
        verdicts = run_verify(names or (), trials, seed, lambda name: bar.update(task, advance=1, description=name))
    if html is not None:
        html.write_text(verify_page(verdicts, trials, seed), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps([asdict(verdict) for verdict in verdicts], indent=1))
    else:
        Console().print(verify_table(verdicts))
    if html is not None:
        typer.echo(f"wrote {html}", err=True)
    raise typer.Exit(0 if all(verdict.expected for verdict in verdicts) else 1)


def main() -> None:
    """Run a command; a user's mistake is one line and exit code 2."""
    try:
        app()
    except AbbeError as error:
        typer.echo(f"abbe: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        typer.echo(f"abbe: {error.strerror}: {error.filename}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
