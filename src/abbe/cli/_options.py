"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from .._errors import AbbeError
from . import _complete
from ._invocation import current

Number = TypeVar("Number", int, float)

MEASURED = "What is measured"
OUTPUT = "Output"


def _remember_debug(given: bool) -> bool:
    """Stands before or behind the command's name: once is enough."""
    current.debug = current.debug or given
    return given


Model = Annotated[
    str,
    typer.Argument(
        help="embedded, smollm2 or another pulled model, a folder, a .gguf file or a hub id.",
        autocompletion=_complete.models,
    ),
]
TextFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        help="Text file, - for standard input, or the text itself in quotes if it has a space; may be repeated. "
        "Without one, the sample that comes with abbe.",
        rich_help_panel=MEASURED,
    ),
]
Lengths = Annotated[
    str | None, typer.Option(help="Window lengths in tokens, such as 64,256,1024.", rich_help_panel=MEASURED)
]
Windows = Annotated[
    int, typer.Option(help="Windows of each length; intervals come from them.", rich_help_panel=MEASURED)
]
Queries = Annotated[str, typer.Option(help='Queries per window, or "all".', rich_help_panel=MEASURED)]
Sizes = Annotated[
    str | None, typer.Option(help="Sizes N of the selected set, such as 1,5,20,100.", rich_help_panel=MEASURED)
]
Vectors = Annotated[
    str,
    typer.Option(
        help="Token vectors: value, output, hidden or embedding.",
        autocompletion=_complete.vectors,
        rich_help_panel=MEASURED,
    ),
]
Seed = Annotated[int, typer.Option(help="Random seed.", rich_help_panel=MEASURED)]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show where an error came from: the traceback instead of one line.",
        callback=_remember_debug,
        rich_help_panel=OUTPUT,
    ),
]


Figures = Annotated[Path | None, typer.Option(help="Folder for the charts as PNG and SVG.", rich_help_panel=OUTPUT)]
Opened = Annotated[
    bool, typer.Option("--open/--no-open", help="Open the page in your browser.", rich_help_panel=OUTPUT)
]


def out_option(command: str) -> typer.models.OptionInfo:
    """The folder of a run: the same rule for every command."""
    option: typer.models.OptionInfo = typer.Option(
        help=f"Folder for run and page; abbe-{command}-MODEL if none is named. A stopped run resumes from it.",
        rich_help_panel=OUTPUT,
    )
    return option


def json_option(what: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option("--json", help=what, rich_help_panel=OUTPUT)
    return found


def quiet_option(what: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option("--quiet", help=what, rich_help_panel=OUTPUT)
    return found


def numbers(option: str, given: str, kind: type[Number]) -> list[Number]:
    try:
        return [kind(part) for part in given.split(",")]
    except ValueError:
        raise AbbeError(f"{option} is {given!r}, but must be numbers separated by commas, such as 64,256") from None


def count_or_all(option: str, given: str) -> int | str:
    try:
        return "all" if given == "all" else int(given)
    except ValueError:
        raise AbbeError(f"{option} is {given!r}, but must be a whole number, or all") from None


def folder_for(command: str, model: str, *more: str) -> Path:
    """The folder of a run for which none was named, such as abbe-report-smollm2."""
    return Path("-".join([f"abbe-{command}", _as_file_name(model), *more]))


def _as_file_name(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name or model).strip("-.") or "model"


def check_file(option: str, path: Path) -> None:
    """Before a long run: a file of that name can be written at its end."""
    if path.is_dir():
        raise AbbeError(f"{option} is {path}, which is a folder: name a file in it")
    if not path.parent.is_dir():
        raise AbbeError(f"{option} is {path}, but there is no folder {path.parent}: make it, or name another file")


def check_folder(option: str, path: Path) -> None:
    """Before a long run: nothing else has that name."""
    if path.exists() and not path.is_dir():
        raise AbbeError(f"{option} is {path}, which is a file: name a folder")
