"""The command of a study, made from its signature and docstring: parameters are options, `Args:` are their help.

The sources are parsed, not imported (`abbe._declared`), so that help and completion need no torch. What many studies
share (model, text, device, seed) has its words here; how a value is parsed follows from its annotation.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from .._declared import Declared, Option, described, studies
from .._errors import AbbeError
from .._lazy import need
from . import _complete, _options
from ._invocation import RESUMES, current
from ._options import check_drawing, folder_for, numbers, output, setting
from ._shown import print_json, show_result

MACHINES, STATISTICS = "Many machines", "Statistics"
RAY = "ray"
_EACH = "each"  # of report: many models, by `report_each`
_LEFT_OUT = ("folder", "tokenizer", "progress")  # --out and --quiet take their place
_NAMES = {"normalizer": "--with", "normalizers": "--with", "optimizers": "--optimizer", "figures": "--figure"}
_COMPLETED: dict[str, Callable[[str], list[str]]] = {
    "normalizer": _complete.normalizers,
    "normalizers": _complete.normalizers,
    "figures": _complete.figures,
}
# Options with the same meaning everywhere, and their defaults on the command line.
_COMMON: dict[str, tuple[Any, Any]] = {
    "model": (_options.Model, "embedded"),
    "text": (_options.TextFiles, None),
    "device": (_options.Device, "cpu"),
    "dtype": (_options.Dtype, "float32"),
    "device_map": (_options.DeviceMap, None),
    "seed": (_options.Seed, 0),
}
_SHARING = {
    "shard": Annotated[
        str | None,
        setting(
            "Make one share of the parts: I/N such as 3/16, or slurm for a task of a job array; then abbe merge.",
            panel=MACHINES,
        ),
    ],
    "engine": Annotated[
        str | None,
        setting(
            "ray: run on actors, each with a copy of the model; on this machine, or with --address on a cluster.",
            panel=MACHINES,
        ),
    ],
    "address": Annotated[str | None, setting("The Ray cluster: auto, HOST:6379 or ray://HOST:10001.", panel=MACHINES)],
    "actors": Annotated[
        int | None,
        setting("Number of actors; by default one per core, or per GPU with --device cuda.", panel=MACHINES),
    ],
}


def command_of(study: Declared) -> tuple[Callable[..., None], tuple[str, ...]]:
    """The function that typer sees, and its examples."""
    about = described(study)
    own = {option.name: option for option in about.options if option.name not in _LEFT_OUT}
    takes_model = "model" in own

    def command(
        *,
        out: Path | None,
        figures_folder: Path | None,
        opened: bool,
        as_json: bool,
        quiet: bool,
        debug: bool,
        shard: str | None = None,
        engine: str | None = None,
        address: str | None = None,
        actors: int | None = None,
        **given: Any,
    ) -> None:
        current.if_stopped = RESUMES
        need(f"abbe {study.command}", study.extra)
        check_drawing(f"abbe {study.command}", figures_folder, opened)
        if given.get("device_map") is not None and given.get("device") == "cpu":
            given["device"] = None  # the default: a map takes its place
        each = given.pop(_EACH, None)
        changed = {name: value for name, value in given.items() if value != defaults[name]}
        values = {name: _parsed(own[name], value) for name, value in changed.items()}
        folder = out or _default_folder(study, given | {"model": "each"} if each else given, takes_model)
        called = study
        if each is not None:
            if "model" in values:
                raise AbbeError(f"--each takes the place of the model {given['model']}: quote it, --each 'runs/*'")
            called, values = studies()["report_each"], {"models": each} | values
        with ExitStack() as stack:
            if shard is not None:
                _refuse_with_shard(figures_folder, opened, engine, address, actors)
            share = _engine(stack, shard, engine, address, actors, given)
            result = _function(called)(**values, folder=folder, progress=not quiet)
        if share is not None:
            if as_json:
                print_json({"shard": shard, "made": share.made, "total": share.total, "missing": share.missing})
            typer.echo(share, err=as_json)
            return
        show_result(result, folder, figures=figures_folder, as_json=as_json, quiet=quiet, opened=opened)

    parameters = [_parameter(option) for option in own.values()]
    defaults = {parameter.name: parameter.default for parameter in parameters}
    if study.function == "report":
        words = "Report on many models instead of one, such as 'checkpoints/*', with an index page."
        parameters.append(_keyword(_EACH, Annotated[str | None, setting(words)], None))
    name = f"{study.command.replace(' ', '-')}{'-MODEL' if takes_model else ''}"
    parameters += [
        _keyword("out", Annotated[Path | None, _options.out_option(name)], None),
        _keyword("figures_folder", Annotated[Path | None, output(_options.FIGURES, "--figures")], None),
        _keyword("opened", _options.Opened, False),
        _keyword("as_json", Annotated[bool, output("Print tables, findings and manifest as JSON.", "--json")], False),
        _keyword("quiet", Annotated[bool, output(_options.QUIET, "--quiet")], False),
        _keyword("debug", _options.Debug, False),
        *(_keyword(name, kind, None) for name, kind in _SHARING.items() if study.shared),
    ]
    command.__name__, command.__doc__ = study.command.rpartition(" ")[2], about.summary
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command, about.examples


def _function(study: Declared) -> Callable[..., Any]:
    """The study, by its public name if it is one of abbe's."""
    from .. import studies as public  # torch is loaded here

    function: Callable[..., Any] = getattr(public, study.function, None) or study.load(study.function)
    return function


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _parameter(option: Option) -> inspect.Parameter:
    """An option of the command line; its annotation says how it is given."""
    if option.name in _COMMON:
        return _keyword(option.name, *_COMMON[option.name])
    if option.name == "other":
        argument = typer.Argument(help=_help(option), autocompletion=_complete.models)
        return _keyword(option.name, Annotated[str | None, argument], None)
    kind, default, names = _kind(option)
    panel = STATISTICS if option.name in ("level", "resamples") else "What is measured"
    values = re.findall(r'"(\w+)"', option.meaning) if "str" in option.annotation else []
    complete = _COMPLETED.get(option.name) or (_complete.one_of(values) if values else None)
    required = default is ...
    info = setting(_help(option), *names, panel=panel, autocompletion=complete)
    return _keyword(option.name, Annotated[kind, info], inspect.Parameter.empty if required else default)


def _kind(option: Option) -> tuple[Any, Any, tuple[str, ...]]:
    """Type, default and names of an option."""
    dashed, text, default = option.name.replace("_", "-"), option.annotation, option.default
    if re.fullmatch(r"bool( \| None)?", text):
        both = default is True or "None" in text
        return (
            (bool | None if "None" in text else bool),
            default,
            (f"--{dashed}/--no-{dashed}" if both else f"--{dashed}",),
        )
    names = (_NAMES.get(option.name, f"--{dashed}"),)
    if option.name in ("normalizers", "optimizers"):
        return list[str] | None, None, names
    plain = {"int": int, "float": float, "int | None": int | None, "float | None": float | None}
    if text in plain:
        return plain[text], default, names
    shown = ",".join(map(str, default)) if isinstance(default, tuple | list) else default
    return (str | None, None, names) if shown is None else (str, str(shown) if shown is not ... else ..., names)


def _help(option: Option) -> str:
    """The line of `Args:`, as a sentence."""
    words = option.meaning.rstrip(".").replace("`", "")
    return words[:1].upper() + words[1:] + "."


def _parsed(option: Option, value: Any) -> Any:
    """A value of the command line as the study takes it."""
    text, name = option.annotation, f"--{option.name.replace('_', '-')}"
    if not isinstance(value, str) or option.name in _COMMON:
        return value
    if value == "none" and ("None" in text or "Sequence" in text):
        return None if "None" in text else ()
    if "Sequence[int]" in text or "Sequence[float]" in text:
        return numbers(name, value, int if "Sequence[int]" in text else float)
    if "Sequence[" in text and "," in value:  # of words, or of numbers and words; a single one may be "all"
        return [part.strip() for part in value.split(",")]
    if re.fullmatch(r"int \| str( \| None)?", text):
        return _options.count_or_all(value)
    return value


def _default_folder(study: Declared, given: Mapping[str, Any], takes_model: bool) -> Path:
    """Such as abbe-report-smollm2; `named_by` is an option whose value, or name, is part of it."""
    if not takes_model:
        return Path(f"abbe-{study.command.replace(' ', '-')}")
    value = given.get(study.named_by) or False
    ending = (study.named_by if value else "") if isinstance(value, bool) else str(value)
    if Path(ending).is_absolute() or ending.startswith(("./", "../")):
        ending = Path(ending).name  # another model: its name without folders, as for the first
    safe = "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in ending)
    return folder_for(study.command, given["model"], *([safe] if safe else []))


def _refuse_with_shard(figures: Path | None, opened: bool, *engine: object) -> None:
    for option, is_set in (("--figures", figures is not None), ("--open", opened)):
        if is_set:
            raise AbbeError(f"a shard makes no page and no figures: give {option} to abbe merge instead")
    if any(option is not None for option in engine):
        raise AbbeError("--shard and --engine (--address, --actors) are two ways to share the work: give one of them")


def _engine(
    stack: ExitStack,
    shard: str | None,
    engine: str | None,
    address: str | None,
    actors: int | None,
    given: Mapping[str, Any],
) -> Any:
    """Enter the shard, which is returned, or the engine."""
    if shard is not None:
        from ..runs.executors import shard as one_share  # light, but torch comes with it

        return stack.enter_context(one_share(shard))
    if engine is None:
        if address is not None or actors is not None:
            raise AbbeError("--address and --actors are for an engine: add --engine ray")
        return None
    if engine != RAY:
        raise AbbeError(f"there is no engine {engine!r}: choose {RAY}, or leave --engine out")
    device = given.get("device") or ""
    if given.get("device_map") is not None:
        raise AbbeError("--device-map needs several GPUs per actor: use abbe.on_ray(gpus=...) in Python, or --shard")
    if device.startswith("cuda:"):
        raise AbbeError(f"--device is {device}, but Ray gives every actor its own GPU: give --device cuda")
    from ..runs.ray import on_ray

    stack.enter_context(on_ray(address, actors=actors, gpus={"cuda": 1, "auto": None}.get(device, 0)))
    return None
