"""Options that several commands share, and how their values are parsed."""

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


def setting(help: str, *names: str, panel: str = "What is measured", **more: Any) -> typer.models.OptionInfo:
    """An option that determines what is measured."""
    option: typer.models.OptionInfo = typer.Option(*names, help=help, rich_help_panel=panel, **more)
    return option


def output(help: str, *names: str, **more: Any) -> typer.models.OptionInfo:
    """An option that determines what is written and shown."""
    return setting(help, *names, panel="Output", **more)


def _remember_debug(value: bool) -> bool:
    """May come before or after the command's name: once is enough."""
    current.debug = current.debug or value
    return value


Model = Annotated[
    str,
    typer.Argument(
        help="embedded, smollm2 or minilm (after abbe pull), a folder, a .gguf file or a hub id.",
        autocompletion=_complete.models,
    ),
]
TextFiles = Annotated[
    list[str] | None,
    setting(
        "Text file, - for standard input, or the text itself in quotes if it has a space; may be repeated. "
        "Without one, the sample that comes with abbe.",
        "--text",
    ),
]
Device = Annotated[
    str,
    setting(
        "Where the model runs: cpu, cuda, cuda:1, mps, xpu, or auto for an accelerator if there is one.",
        autocompletion=_complete.devices,
    ),
]
Dtype = Annotated[
    str,
    setting("Precision of the weights: float32, bfloat16 or float16.", autocompletion=_complete.dtypes),
]
DeviceMap = Annotated[
    str | None,
    setting(
        "Spread the model over several devices instead: auto, balanced or sequential; needs accelerate.",
        autocompletion=_complete.device_maps,
    ),
]
Lengths = Annotated[str | None, setting("Window lengths in tokens, such as 64,256,1024.")]
Windows = Annotated[int, setting("Windows per length; intervals are computed over them.")]
Queries = Annotated[str, setting('Queries per window, or "all".')]
Seed = Annotated[int, setting("Random seed.")]
FIGURES = "Folder for the charts as PNG, SVG and PDF."
QUIET = "No cost line, progress bar or table; only the path of the page."
Figures = Annotated[Path | None, output(FIGURES)]
Opened = Annotated[bool, output("Open the page in your browser.", "--open/--no-open")]
Quiet = Annotated[bool, output("No table; only the path of the page.", "--quiet")]
Debug = Annotated[
    bool,
    output("Show the full traceback of an error instead of one line.", "--debug", callback=_remember_debug),
]


def out_option(folder: str) -> typer.models.OptionInfo:
    return output(f"Folder for run and page; by default abbe-{folder}. A stopped run resumes from it.")


def json_option(what: str) -> typer.models.OptionInfo:
    return output(what, "--json")


def quiet_option(what: str) -> typer.models.OptionInfo:
    return output(what, "--quiet")


@overload
def numbers(option: str, value: str, kind: type[Number]) -> list[Number]: ...
@overload
def numbers(option: str, value: str | None, kind: type[Number]) -> list[Number] | None: ...
def numbers(option: str, value: str | None, kind: type[Number]) -> list[Number] | None:
    """Comma-separated numbers; None if the option is absent."""
    if value is None:
        return None
    try:
        return [kind(part) for part in value.split(",")]
    except ValueError:
        raise AbbeError(f"{option} is {value!r}, but must be numbers separated by commas, such as 64,256") from None


def count_or_all(queries: str) -> int | str:
    try:
        return "all" if queries == "all" else int(queries)
    except ValueError:
        raise AbbeError(f"--queries is {queries!r}, but must be a whole number, or all") from None


def folder_for(command: str, model: str, *more: str) -> Path:
    """The default folder of a run, such as abbe-report-smollm2."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name or model).strip("-.") or "model"
    return Path("-".join([f"abbe-{command}", name, *more]))


def check_file(option: str, path: Path) -> None:
    """Before a long run: the file can be written at its end."""
    if path.is_dir():
        raise AbbeError(f"{option} is {path}, which is a folder: name a file in it")
    if not path.parent.is_dir():
        raise AbbeError(f"{option} is {path}, but there is no folder {path.parent}: make it, or name another file")


def check_drawing(command: str, figures: Path | None, opened: bool) -> None:
    """Before a long run: the packages for charts and pages are installed, and the charts have a folder."""
    if figures is not None:
        need(f"{command} --figures", "report")
        check_folder("--figures", figures)
    if opened:
        need(f"{command} --open", "report")


def check_folder(option: str, path: Path) -> None:
    """Before a long run: no file is in the way."""
    if path.exists() and not path.is_dir():
        raise AbbeError(f"{option} is {path}, which is a file: name a folder")
