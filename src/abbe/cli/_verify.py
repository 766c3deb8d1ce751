"""abbe verify"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .._lazy import need
from . import _complete
from ._options import Debug, Figures, Opened, check_drawing, check_file, json_option, output, quiet_option
from ._shown import open_in_browser, print_json

EXAMPLES = (
    "abbe verify",
    "abbe verify spectral spectral-paper --trials 20000",
    "abbe verify --html theory.html --open",
    "abbe verify --figures figures",
    "abbe verify --list",
)


def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Statements to check; all by default.", autocompletion=_complete.statements),
    ] = None,
    trials: Annotated[
        int, typer.Option(help="Random draws per statement; more draws also mean a longer search.")
    ] = 2000,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    listing: Annotated[bool, typer.Option("--list", help="Only list the statements.")] = False,
    html: Annotated[Path | None, output("Also write the table as one offline page.")] = None,
    figures: Figures = None,
    opened: Opened = False,
    as_json: Annotated[bool, json_option("Print a JSON object instead of a table.")] = False,
    quiet: Annotated[bool, quiet_option("No progress bar; only a one-line summary.")] = False,
    debug: Debug = False,
) -> None:
    """Check every bound numerically: random draws and a search for the worst case.

    Exit code 0 when every shipped bound holds and every statement marked refuted is refuted again, else 1.
    """
    if listing:
        _list(as_json)
        return
    html = html or (Path("abbe-verify.html") if opened else None)
    if html is not None:
        need("abbe verify --html", "report")
        check_file("--html", html)
    check_drawing("abbe verify", figures, opened)
    from .. import studies
    from ..bounds import catalogue
    from ..studies import watching
    from ..views import verify_summary, verify_table

    with watching(not quiet) as watch:
        watch.expect(len(names or catalogue()))
        verdicts = studies.verify(names or (), trials, seed, watch.step)
    if html is not None:
        from ..views import verify_page

        html.write_text(verify_page(verdicts, trials, seed), encoding="utf-8")
    if figures is not None:
        from ..views import save_verify_figures

        save_verify_figures(verdicts, figures)
    if as_json:
        print_json({"trials": trials, "seed": seed, "verdicts": [asdict(verdict) for verdict in verdicts]})
    elif quiet:
        typer.echo(verify_summary(verdicts))
    else:
        from rich.console import Console

        Console().print(verify_table(verdicts))
    if not quiet:
        for path in (html, figures):
            if path is not None:
                typer.echo(f"wrote {path}", err=True)
    if html is not None and opened:
        open_in_browser(html)
    raise typer.Exit(0 if all(verdict.expected for verdict in verdicts) else 1)


def _list(as_json: bool) -> None:
    from ..bounds import catalogue

    if as_json:
        fields = ("name", "section", "text", "status", "source")
        shown = [{field: getattr(statement, field) for field in fields} for statement in catalogue()]
        print_json({"statements": shown})
        return
    for statement in catalogue():
        elsewhere = statement.source.partition("; ")[2]
        typer.echo(
            f"{statement.name:28} {statement.status:14} {statement.text}" + (f" ({elsewhere})" if elsewhere else "")
        )
