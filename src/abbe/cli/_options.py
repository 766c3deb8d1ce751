"""Options of commands, made from signatures and docstrings: parameters are options, `Args:` are their help.

What many commands share (model, text, device, seed) has its words here; how a value is parsed follows from its
annotation. Also what `main` must know of a running command.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from .._declared import Option
from .._errors import AbbeError
from .._lazy import need
from . import complete

FAILED, MISTAKE, STOPPED, PIPE_CLOSED = 1, 2, 130, 141  # exit codes

FROM_THE_START = "nothing was kept, the same command starts again"
RESUMES = "finished work is kept: run the same command again to resume"


@dataclass
class Invocation:
    """Set by options and commands, read after an error."""

    debug: bool = False
    if_stopped: str = FROM_THE_START
    interrupted: float = -math.inf  # when Ctrl-C was last passed on, by the monotonic clock

    def reset(self) -> None:
        self.debug, self.if_stopped, self.interrupted = False, FROM_THE_START, -math.inf


current = Invocation()
_NAMES = {
    "normalizer": "--with", "normalizers": "--with", "optimizers": "--optimizer", "figures": "--figure",
    "figures_folder": "--figures", "opened": "--open/--no-open", "as_json": "--json", "listing": "--list",
}  # fmt: skip
# Options with the same meaning everywhere, given as they are.
_COMMON = {
    "model": "embedded, smollm2 or minilm (after abbe pull), a folder, a .gguf file or a hub id.",
    "text": "Text file, - for standard input, or the text itself in quotes if it has a space; may be repeated. "
    "Without one, the sample that comes with abbe.",
    "tokens": "Token ids in place of a text: a .npy or .safetensors file.",
    "device": "Where the model runs: cpu, cuda, cuda:1, mps, xpu, or auto for an accelerator if there is one.",
    "dtype": "Precision of the weights: float32, bfloat16 or float16.",
    "device_map": "Spread the model over several devices instead: auto, balanced or sequential; needs accelerate.",
    "seed": "Random seed.",
    "figures_folder": "Folder for the charts as PNG, SVG and PDF.",
    "opened": "Open the page in your browser.",
}
_DEFAULTS = {"device": "cpu", "dtype": "float32"}
_SEVERAL = ("text", "normalizers", "optimizers")  # may be repeated
_TYPES: dict[str, Any] = {
    "bool": bool, "bool | None": bool | None, "int": int, "int | None": int | None, "float": float,
    "float | None": float | None, "Path": Path, "Path | None": Path | None, "list[str] | None": list[str] | None,
}  # fmt: skip
_COMPLETED: dict[str, Callable[[str], list[str]]] = {
    **dict.fromkeys(("model", "other"), complete.models),
    **dict.fromkeys(("normalizer", "normalizers", "plan", "specs", "with_a", "with_b"), complete.normalizers),
    "figures": complete.figures,
    "device": complete.one_of(("auto", "cpu", "cuda", "mps", "xpu")),
    "device_map": complete.one_of(("auto", "balanced", "balanced_low_0", "sequential")),
    "dtype": complete.one_of(("float32", "bfloat16", "float16")),
}
_PANELS = {
    **dict.fromkeys(("level", "resamples"), "Statistics"),
    **dict.fromkeys(("flops", "bandwidth", "devices", "memory"), "Another device"),
    **dict.fromkeys(("out", "gguf", "html", "figures_folder", "opened", "follow", "as_json", "quiet"), "Output"),
    **dict.fromkeys(("shard", "engine", "address", "actors"), "Many machines"),
}


def _remember_debug(value: bool) -> bool:
    """May come before or after the command's name: once is enough."""
    current.debug = current.debug or value
    return value


Debug = Annotated[
    bool,
    typer.Option(
        "--debug", help="Show the full traceback of an error instead of one line.", callback=_remember_debug,
        rich_help_panel="Output",
    ),
]  # fmt: skip


def as_command(
    run: Callable[..., None], typed: str, extra: str, help: str, options: Sequence[Option], arguments: Collection[str]
) -> Callable[..., None]:
    """The function that typer sees; it calls `run` with what differs from the defaults, parsed.

    `typed` is the command as it is typed, `extra` of the package is what it needs.
    """
    own = {option.name: option for option in options}
    parameters = [_parameter(option, option.name in arguments) for option in options]
    defaults = {parameter.name: parameter.default for parameter in parameters}
    parameters.append(_keyword("debug", Debug, False))

    def command(*, debug: bool, **given: Any) -> None:
        need(f"abbe {typed}", extra)
        _check_drawing(f"abbe {typed}", given.get("figures_folder"), given.get("opened", False))
        run(**{name: _parsed(own[name], value) for name, value in given.items() if value != defaults[name]})

    command.__name__, command.__doc__ = typed.rpartition(" ")[2], help
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _parameter(option: Option, is_argument: bool) -> inspect.Parameter:
    """An option of the command line; its annotation says how it is given."""
    kind, default = _kind(option)
    words = option.meaning.rstrip(".").replace("`", "")
    values = re.findall(r'"(\w+)"', option.meaning) if "str" in option.annotation else []
    offered = _COMPLETED.get(option.name) or (complete.one_of(values) if values else None)
    help = _COMMON.get(option.name, f"{words[:1].upper()}{words[1:]}.")
    panel = _PANELS.get(option.name, "What is measured")
    info = (
        typer.Argument(help=help, autocompletion=offered)
        if is_argument
        else typer.Option(_name(option), help=help, autocompletion=offered, rich_help_panel=panel)
    )
    return _keyword(option.name, Annotated[kind, info], inspect.Parameter.empty if default is ... else default)


def _name(option: Option) -> str:
    dashed = option.name.replace("_", "-")
    both = option.annotation == "bool | None" or option.default is True
    return _NAMES.get(option.name, f"--{dashed}/--no-{dashed}" if both else f"--{dashed}")


def _kind(option: Option) -> tuple[Any, Any]:
    """Type and default of an option; a list of numbers or words is given as text."""
    default = option.default
    if option.name in _SEVERAL:
        return list[str] | None, None
    if option.annotation in _TYPES:
        return _TYPES[option.annotation], default
    default = _DEFAULTS.get(option.name) if default is None else default
    shown = ",".join(map(str, default)) if isinstance(default, tuple | list) else default
    return (str | None, None) if shown is None else (str, ... if shown is ... else str(shown))


def _parsed(option: Option, value: Any) -> Any:
    """A value of the command line as the function takes it."""
    text, name = option.annotation, f"--{option.name.replace('_', '-')}"
    if not isinstance(value, str) or option.name in _COMMON:
        return value
    if value == "none" and ("None" in text or "Sequence" in text):
        return None if "None" in text else ()
    if "Sequence[int]" in text or "Sequence[float]" in text:
        kind = int if "Sequence[int]" in text else float
        try:
            return [kind(part) for part in value.split(",")]
        except ValueError:
            raise AbbeError(f"{name} is {value!r}, but must be numbers separated by commas, such as 64,256") from None
    if "Sequence[" in text and "," in value:  # of words, or of numbers and words; a single one may be "all"
        return [part.strip() for part in value.split(",")]
    if re.fullmatch(r"int \| str( \| None)?", text) and value != "all":
        try:
            return int(value)
        except ValueError:
            raise AbbeError(f"{name} is {value!r}, but must be a whole number, or all") from None
    return value


# -- Before a long run ------------------------------------------------------------------------------------------------


def check_file(option: str, path: Path) -> None:
    """The file can be written at the end."""
    if path.is_dir():
        raise AbbeError(f"{option} is {path}, which is a folder: name a file in it")
    if not path.parent.is_dir():
        raise AbbeError(f"{option} is {path}, but there is no folder {path.parent}: make it, or name another file")


def _check_drawing(command: str, figures: Path | None, opened: bool) -> None:
    """The packages for charts and pages are installed, and no file is in the way of the charts."""
    if figures is not None:
        need(f"{command} --figures", "report")
        if figures.exists() and not figures.is_dir():
            raise AbbeError(f"--figures is {figures}, which is a file: name a folder")
    if opened:
        need(f"{command} --open", "report")
