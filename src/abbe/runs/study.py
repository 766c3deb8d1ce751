"""A study is declared once, by `@study` at its function and `study=...` at the class of its result.

Commands, help, pages, lazy names, `abbe.open`, shards and Ray learn of it from there; the decorator also remembers the
call, so that `abbe.merge` can repeat it.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping
from contextlib import chdir, closing, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from .. import _declared
from .._arguments import plain
from .._errors import AbbeError
from .._files import read_json
from .._lazy import has
from .._locks import held
from ..models import Text, Tokens, read_text, read_tokens
from ..results import MANIFEST, Result, checked_manifest, read_manifest
from .executors import current, using
from .inputs import as_folder

P = ParamSpec("P")
R = TypeVar("R", bound=Result)
_HERE = ("folder", "progress")  # these come from the call that merges

Call = Mapping[str, Any]  # a study and its arguments, for JSON
_call: ContextVar[Call | None] = ContextVar("call", default=None)
engine: ContextVar[Any] = ContextVar("engine", default=None)  # makes executors, if called within `on_ray`


def current_call() -> Call | None:
    """The outermost call of a study, which manifests record; None outside of any."""
    return _call.get()


def study(
    result: type[R],
    *,
    command: str = "",
    extra: str = "models",
    named_by: str = "",
    shared: str = "yes",
    page: str = "",
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a function as a study.

    Its parameters are the options of its command, with the lines of `Args:` as their help; the lines below `Commands:`
    in its docstring are the examples.

    Args:
        result: the class of its result.
        command: as it is typed; by default the name of the function.
        extra: packages that it needs: "models", or "all" if it writes a page.
        named_by: the option that is part of the name of its default folder.
        shared: "no" if its work cannot be shared among shards and actors.
        page: "yes" to write the page along with the result wherever the packages for it are installed.
    """

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        name, signature = function.__name__, inspect.signature(function)
        _function: Callable[..., R] = function

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments = _named(signature, args, kwargs)
            folder = as_folder(arguments.get("folder"))
            if _call.get() is not None:  # a study within another one is part of it
                with held(folder):
                    return _saved(function(*args, **kwargs), folder, page=extra == "all")
            if arguments.get("tokens") is not None and not isinstance(arguments["tokens"], str | os.PathLike):
                arguments["tokens"] = read_tokens(arguments["tokens"])  # no part of the call in the manifest
            if "text" in arguments:
                arguments["text"] = _read_once(arguments["text"])
            token = _call.set(_as_json(name, arguments))
            try:
                _check_folder(folder, result.study)
                on_ray = engine.get()
                chosen = current() if on_ray is None else on_ray(name, arguments)
                with closing(chosen) as executor, using(executor), held(folder, executor.lock):
                    made = _function(**arguments)
                    executor.finish()
                    return _saved(made, folder, page=extra == "all" or (page == "yes" and has("report")))
            finally:
                _call.reset(token)

        if not function.__module__.startswith("abbe."):
            _declared.registered[name] = _declared.Declared(
                name, result.__name__, function.__module__, command or name, extra, named_by, shared == "yes"
            )
        return call

    return declare


def _named(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by name, those of `**options` among them, and the model, also if it is the default."""
    arguments = dict(signature.bind(*args, **kwargs).arguments)
    if "model" in signature.parameters:  # by which `_check_folder` knows the run
        arguments.setdefault("model", signature.parameters["model"].default)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= arguments.pop(parameter.name, {})
    return arguments


def _saved(result: R, folder: Path | None, page: bool) -> R:
    if folder is not None:
        result.save(folder)
        if page:
            result.to_html(folder / result.page)
    return result


def _check_folder(folder: Path | None, study: str) -> None:
    """Refuse a folder of another version, study or model before a model is loaded; `claim` checks the rest."""
    if folder is None or not (folder / MANIFEST).is_file():
        return
    manifest = checked_manifest(folder / MANIFEST, read_json(folder / MANIFEST))
    other = manifest.get("study")
    if other != study and (other, study) != ("diagnose", "report"):  # a report continues the run of a diagnosis
        raise AbbeError(f"{folder} is a folder of `abbe {other}`: name a new folder (--out)")
    before, now = ((call or {}).get("arguments", {}).get("model") for call in (manifest.get("call"), _call.get()))
    if isinstance(before, str) and isinstance(now, str) and manifest.get("finished"):
        here = manifest["call"].get("here", "")
        if before != now and Path(here, before).resolve() != Path(now).resolve():
            raise AbbeError(f"{folder} holds a run of {before}, not of {now}: name a new folder (--out)")


def open(folder: str | os.PathLike[str]) -> Result:
    """Open the result that a study saved in a folder.

    A folder that a `Monitor` writes can be opened while the training run goes on.

    Args:
        folder: of the run.

    Returns:
        The result, as the study returned it.

    Raises:
        AbbeError: it is not a run folder, or is unfinished or damaged.

    Examples:
        >>> abbe.open(abbe.diagnose(lengths=32, windows=2, queries=4, progress=False).save("run"))
        Run(abbe-gpt2-5M on embedded sample, lengths [32], ... rows)
    """
    source = Path(folder).expanduser()
    manifest, stored = read_manifest(source)
    name = str(manifest.get("study"))
    # This imports the module of the study, which knows its result.
    for declared in (*_declared.studies().values(), _declared.MONITOR):
        if name in (declared.command, declared.command.partition(" ")[0]):
            declared.load(declared.result)
    kind = Result.known.get(name)
    if kind is None:
        raise AbbeError(f"{source} is a folder of `abbe {name}`, which this version does not know")
    try:
        return kind.opened(source, manifest, stored)
    except (KeyError, TypeError, ValueError) as error:
        raise AbbeError(f"{source} is incomplete ({error}): run the same command again with this folder") from None


def list_results() -> dict[str, type[Result]]:
    """The class of every study's result, which says what its tables and files hold.

    Returns:
        Classes by study.

    Examples:
        >>> abbe.studies.list_results()["capacity"].frame("curve").rows
        'a loss that was evaluated'
    """
    declared = (*_declared.studies().values(), _declared.MONITOR)
    kinds: list[type[Result]] = [study.load(study.result) for study in declared]
    return {kind.study: kind for kind in kinds}


def merge(folder: str | os.PathLike[str], progress: bool = True) -> Result:
    """Make what the shards of a study left, and its result: the same call without a shard.

    Args:
        folder: that the shards share, or to which their folders were copied.
        progress: show cost and a bar on standard error.

    Returns:
        The result, as one process would have made it.

    Raises:
        AbbeError: it is not the folder of a study, or its model or text is not here.

    Examples:
        >>> abbe.merge("no-such-folder")
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: no-such-folder holds no run: there is no manifest.json in it
    """
    path = Path(folder).expanduser()
    manifest, _ = read_manifest(path, finished=False)
    if manifest.get("finished"):
        return open(path)
    path = path.absolute()
    call = manifest.get("call")
    if not isinstance(call, dict) or call.get("study") not in _declared.studies():
        raise AbbeError(f"{folder} has no shards to merge: call the study with this folder to resume it")
    if call["absent"]:
        raise AbbeError(
            f"{' and '.join(call['absent'])} cannot be read from {folder}: call {call['study']} without a shard"
        )
    arguments = dict(call["arguments"])
    if isinstance(arguments.get("text"), dict):
        arguments["text"] = Text(**arguments["text"])
    function = _declared.studies()[call["study"]].load(call["study"])
    here = Path(call["here"])
    with chdir(here) if here.is_dir() else nullcontext():  # paths are relative to where the shards were started
        result: Result = function(**arguments, folder=path, progress=progress)
    return result


def _read_once(text: Any) -> Any:
    """Standard input, which can be read only once, as its text; anything else unchanged."""
    from_input = text == "-" or (isinstance(text, (list, tuple)) and "-" in text)
    return read_text(text) if from_input else text


def _as_json(name: str, arguments: Mapping[str, Any]) -> Call:
    """A call for JSON, and the names of arguments that have no such form, such as a network."""
    kept, absent = {}, []
    for key, value in arguments.items():
        if key not in _HERE:
            try:
                kept[key] = json.loads(json.dumps(value, default=_plain))
            except (TypeError, ValueError):
                absent.append(key)
    return {"study": name, "arguments": kept, "absent": absent, "here": os.getcwd()}


def _plain(value: Any) -> Any:
    if isinstance(value, (torch.device, torch.dtype)):
        return str(value).removeprefix("torch.")
    if isinstance(value, Tokens):
        raise TypeError
    if isinstance(value, Text):
        return {"name": value.name, "content": value.content}
    return os.fspath(value) if isinstance(value, os.PathLike) else plain(value)
