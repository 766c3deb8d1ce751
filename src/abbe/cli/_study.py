"""What commands that measure or train a model have in common: options, where they write, and how they end.

A command's function lists only its own options and calls the study. `study` makes the command that typer sees: the
options of a group replace the parameter of that name (`subject`, `heads`), and the options of all commands follow. A
command that makes its own models takes `shared` instead of `subject`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict, get_type_hints

from .._lazy import need
from . import _options
from ._invocation import RESUMES, current
from ._names import EXTRA_OF, SHARED
from ._options import check_drawing, count_or_all, folder_for, json_option, numbers, out_option, quiet_option
from ._scale.sharing import Actors, Address, Engine, Shard, refuse_with_shard, run_by, run_shard
from ._shown import show_result

AnyResult = Any  # a Result: help reads this hint, and must not wait for results to be imported
_QUIET = "No cost line, progress bar or table; only the path of the page."


class Shared(TypedDict):
    """Arguments that every study takes."""

    seed: int
    folder: Path
    progress: bool
    device: str | None


class SharedByModels(Shared):
    """Arguments that every study of a given model takes."""

    dtype: str
    device_map: str | None


class Heads(TypedDict):
    """What the studies of all heads measure."""

    lengths: list[int] | None
    windows: int
    queries: int | str
    sizes: list[int] | None
    vectors: str


@dataclass(frozen=True)
class Subject:
    """Model and text, and the arguments that every study takes."""

    model: str
    text: list[str] | None
    shared: SharedByModels


def study(
    json: str, *, named_by: str = "", figures_in: str = "", file: str = "", group: str = ""
) -> Callable[[Callable[..., AnyResult]], Callable[..., None]]:
    """A command from the function that calls its study.

    Args:
        json: help of `--json`.
        named_by: the option that is part of the default folder's name: its value, or the name of a switch.
        figures_in: subfolder of the run for charts without `--figures`; if empty, none are drawn.
        file: label of the result's `file`, which is then printed below the table.
        group: the command above this one, such as train.
    """

    def as_command(measure: Callable[..., AnyResult]) -> Callable[..., None]:
        name = f"{group} {measure.__name__}" if group else measure.__name__
        takes_model = "subject" in inspect.signature(measure).parameters

        def command(
            *, seed: int, out: Path | None, figures: Path | None, opened: bool, as_json: bool, quiet: bool, debug: bool,
            shard: str | None = None, engine: str | None = None, address: str | None = None, actors: int | None = None,
            **own: Any,
        ) -> None:  # fmt: skip
            current.if_stopped = RESUMES
            need(f"abbe {name}", EXTRA_OF[group or name])
            check_drawing(f"abbe {name}", figures, opened)
            device, device_map = own.pop("device"), own.get("device_map")
            of = ("each" if own.get("each") else own["model"]) if takes_model else measure.__name__
            folder = out or folder_for(group or name, of, *_in_the_name(named_by, own))
            shared = Shared(seed=seed, folder=folder, progress=not quiet, device=device)
            if takes_model:
                own["subject"] = _subject(own, shared)
            else:
                own["shared"] = shared
            own = _with_heads(own)
            if shard is not None:
                refuse_with_shard(figures, opened, (engine, address, actors), own.get("each"))
                run_shard(shard, folder, lambda: measure(**own), as_json=as_json)
                return
            with run_by(engine, address, actors, device, device_map):
                result = measure(**own)
            charts = figures or (folder / figures_in if figures_in else None)
            lines = [f"{file}: {result.file}"] if file else []
            show_result(result, folder, figures=charts, as_json=as_json, quiet=quiet, opened=opened, lines=lines)

        signature = _composed(measure, json, f"{name.replace(' ', '-')}{'-MODEL' if takes_model else ''}")
        command.__name__, command.__doc__ = measure.__name__, measure.__doc__
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
        return command

    return as_command


def _in_the_name(option: str, own: Mapping[str, Any]) -> list[str]:
    """The end of the folder's name, with characters that a file name may have."""
    value = own.get(option) or False
    ending = (option if value else "") if isinstance(value, bool) else str(value)
    if Path(ending).is_absolute() or ending.startswith(("./", "../")):
        ending = Path(ending).name  # another model: its name without folders, as for the first
    return ["".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in ending)] if ending else []


def _composed(measure: Callable[..., AnyResult], json: str, folder: str) -> inspect.Signature:
    """The function's own options among the common ones, in the order of the help."""
    hints = get_type_hints(measure, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(measure).parameters.values():
        own = [_option(one.name, hints[one.name], one.default)] if one.name not in _GROUPS else []
        parameters += _GROUPS.get(one.name, own)
    parameters += [
        _option("seed", _options.Seed, 0),
        *(_SHARING if folder.split("-")[0] in SHARED else []),
        _option("out", Annotated[Path | None, out_option(folder)], None),
        _option("figures", _options.Figures, None),
        _option("opened", _options.Opened, False),
        _option("as_json", Annotated[bool, json_option(json)], False),
        _option("quiet", Annotated[bool, quiet_option(_QUIET)], False),
        _option("debug", _options.Debug, False),
    ]
    return inspect.Signature(parameters)


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


_SHARING = [
    _option("shard", Shard, None),
    _option("engine", Engine, None),
    _option("address", Address, None),
    _option("actors", Actors, None),
]
_DEVICE = _option("device", _options.Device, "cpu")
_GROUPS: dict[str, list[inspect.Parameter]] = {
    "shared": [_DEVICE],
    "subject": [
        _option("model", _options.Model, "embedded"),
        _option("text", _options.TextFiles, None),
        _DEVICE,
        _option("dtype", _options.Dtype, "float32"),
        _option("device_map", _options.DeviceMap, None),
    ],
    "heads": [
        _option("lengths", _options.Lengths, None),
        _option("windows", _options.Windows, 8),
        _option("queries", _options.Queries, "64"),
        _option("sizes", _options.Sizes, None),
        _option("vectors", _options.Vectors, "value"),
    ],
}


def _subject(own: dict[str, Any], shared: Shared) -> Subject:
    """The options of the model as one argument, taken out of the command's own."""
    dtype, device_map = own.pop("dtype"), own.pop("device_map")
    if device_map is not None and shared["device"] == "cpu":
        shared["device"] = None  # the default: a map takes its place
    placed = SharedByModels(**shared, dtype=dtype, device_map=device_map)
    return Subject(own.pop("model"), own.pop("text"), placed)


def _with_heads(own: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the heads as one argument, if the command has them."""
    names = [one.name for one in _GROUPS["heads"]]
    if not set(names) <= set(own):
        return dict(own)
    heads = Heads(
        lengths=numbers("--lengths", own["lengths"], int), windows=own["windows"],
        queries=count_or_all(own["queries"]), sizes=numbers("--sizes", own["sizes"], int), vectors=own["vectors"],
    )  # fmt: skip
    return {"heads": heads} | {name: value for name, value in own.items() if name not in names}
