"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, TypeVar, overload

import typer

from .._errors import AbbeError
from .._lazy import need
from . import _complete
from ._invocation import current

Number = TypeVar("Number", int, float)

MEASURED = "What is measured"
OUTPUT = "Output"


def measured(help: str, *names: str, **more: Any) -> typer.models.OptionInfo:
    """An option that decides what is measured."""
    option: typer.models.OptionInfo = typer.Option(*names, help=help, rich_help_panel=MEASURED, **more)
    return option


def output(help: str, *names: str, **more: Any) -> typer.models.OptionInfo:
    """An option that decides what is written and shown."""
    option: typer.models.OptionInfo = typer.Option(*names, help=help, rich_help_panel=OUTPUT, **more)
    return option


def _remember_debug(given: bool) -> bool:
    """Stands before or behind the command's name: once is enough."""
    current.debug = current.debug or given
    return given


Model = Annotated[
    str,
    typer.Argument(
        help="embedded, smollm2 or minilm (after abbe pull), a folder, a .gguf file or a hub id.",
        autocompletion=_complete.models,
    ),
]
TextFiles = Annotated[
    list[str] | None,
    measured(
        "Text file, - for standard input, or the text itself in quotes if it has a space; may be repeated. "
        "Without one, the sample that comes with abbe.",
        "--text",
    ),
]
Device = Annotated[
    str,
    measured(
        "Where the model runs: cpu, cuda, cuda:1, mps, xpu, or auto for an accelerator if there is one.",
        autocompletion=_complete.devices,
    ),
]
Dtype = Annotated[
    str,
    measured("Precision of the weights: float32, bfloat16 or float16.", autocompletion=_complete.dtypes),
]
DeviceMap = Annotated[
    str | None,
    measured(
        "Spread the model over several devices instead: auto, balanced or sequential; needs accelerate.",
        autocompletion=_complete.device_maps,
    ),
]
Lengths = Annotated[str | None, measured("Window lengths in tokens, such as 64,256,1024.")]
Windows = Annotated[int, measured("Windows per length; intervals are computed over them.")]
Queries = Annotated[str, measured('Queries per window, or "all".')]
Sizes = Annotated[str | None, measured("Sizes N of the selected sets, such as 1,5,20,100.")]
Vectors = Annotated[
    str, measured("Vectors for distances: value, output, hidden or embedding.", autocompletion=_complete.vectors)
]
Seed = Annotated[int, measured("Random seed.")]
Figures = Annotated[Path | None, output("Folder for the charts as PNG and SVG.")]
Opened = Annotated[bool, output("Open the page in your browser.", "--open/--no-open")]
Quiet = Annotated[bool, output("No table; only the path of the page.", "--quiet")]
Debug = Annotated[
    bool,
    output("Show the full traceback of an error instead of one line.", "--debug", callback=_remember_debug),
]


def out_option(folder: str) -> typer.models.OptionInfo:
    """The folder of a run: the same rule for every command."""
    return output(f"Folder for run and page; by default abbe-{folder}. A stopped run resumes from it.")


def json_option(what: str) -> typer.models.OptionInfo:
    return output(what, "--json")


def quiet_option(what: str) -> typer.models.OptionInfo:
    return output(what, "--quiet")


def with_option(what: str) -> typer.models.OptionInfo:
    """Which normalizer, or normalizers."""
    return measured(what, "--with", autocompletion=_complete.normalizers)


@overload
def numbers(option: str, given: str, kind: type[Number]) -> list[Number]: ...
@overload
def numbers(option: str, given: str | None, kind: type[Number]) -> list[Number] | None: ...
def numbers(option: str, given: str | None, kind: type[Number]) -> list[Number] | None:
    """Numbers between commas; none where the option was not given."""
    if given is None:
        return None
    try:
        return [kind(part) for part in given.split(",")]
    except ValueError:
        raise AbbeError(f"{option} is {given!r}, but must be numbers separated by commas, such as 64,256") from None


def count_or_all(given: str) -> int | str:
    """Of --queries."""
    try:
        return "all" if given == "all" else int(given)
    except ValueError:
        raise AbbeError(f"--queries is {given!r}, but must be a whole number, or all") from None


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


def check_drawing(command: str, figures: Path | None, opened: bool) -> None:
    """Before a long run: what draws charts and pages is installed, and the charts have a folder."""
    if figures is not None:
        need(f"{command} --figures", "report")
        check_folder("--figures", figures)
    if opened:
        need(f"{command} --open", "report")


def check_folder(option: str, path: Path) -> None:
    """Before a long run: nothing else has that name."""
    if path.exists() and not path.is_dir():
        raise AbbeError(f"{option} is {path}, which is a file: name a folder")
