"""The arguments of a shared study as its folder keeps them, so that `merge` can call it again."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, cast

import torch

from ...._arguments import plain
from ....models import FILE_PREFIX, Text
from ..given import as_text
from .crew import current
from .engine import current_engine

_P = ParamSpec("_P")
_R = TypeVar("_R")
_HERE = ("folder", "progress")  # are those of the call that merges
_MODEL, _TEXT, _ARGUMENTS, _ABSENT, _SPELLED = "model", "text", "arguments", "absent", "spelled"
_spelling: ContextVar[Mapping[str, str]] = ContextVar("spelling", default=MappingProxyType({}))


def shareable(study: Callable[_P, _R]) -> Callable[_P, _R]:
    """A study that workers can share: the first one writes its arguments down."""
    signature = inspect.signature(study)

    @functools.wraps(study)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        crew, engine = current.get(), current_engine.get()
        if crew is None and engine is not None:
            given = signature.bind(*args, **kwargs).arguments
            text = {_TEXT: read_once(given[_TEXT])} if _TEXT in given else {}
            return cast(_R, engine.run(study.__name__, given | text))
        if crew is None:
            return study(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        if _TEXT in bound.arguments:
            bound.arguments[_TEXT] = read_once(bound.arguments[_TEXT])
        crew.ask(study.__name__, written_down(bound.arguments))
        return study(*bound.args, **bound.kwargs)

    return called


def arguments_of(asked: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What `shareable` wrote down, and the names of arguments that cannot be written down, such as a network."""
    arguments = dict(asked[_ARGUMENTS])
    if isinstance(arguments.get(_TEXT), dict):
        arguments[_TEXT] = Text(**arguments[_TEXT])
    return arguments, list(asked[_ABSENT])


def read_once(text: Any) -> Any:
    """Standard input, which can be read only once, as its text; else what was given."""
    from_input = text == "-" or (isinstance(text, (list, tuple)) and "-" in text)
    return as_text(text) if from_input else text


@contextmanager
def spelled_as_asked(asked: Mapping[str, Any]) -> Iterator[None]:
    """Within, files are shown as the workers were given them, though they are found in any folder."""
    before = _spelling.set(asked.get(_SPELLED, {}))
    try:
        yield
    finally:
        _spelling.reset(before)


def spelled(spec: str) -> str:
    """The name of a file as it was given to the workers: a run is known by it, too."""
    return _spelling.get().get(spec, spec)


def written_down(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON, and the names of those that have no such form."""
    arguments, absent = {}, []
    spelling: dict[str, str] = {}
    for name, value in given.items():
        if name in _HERE:
            continue
        try:
            arguments[name] = json.loads(json.dumps(_plain(name, value, spelling)))
        except (TypeError, ValueError):
            absent.append(name)
    return {_ARGUMENTS: arguments, _ABSENT: absent, _SPELLED: spelling}


def _plain(name: str, value: Any, spelling: dict[str, str]) -> Any:
    if isinstance(value, (torch.device, torch.dtype)):
        return str(value).removeprefix("torch.")
    if isinstance(value, Text):
        return {"name": value.name, "content": value.content}
    if name in (_MODEL, _TEXT) and isinstance(value, (list, tuple)):
        return [_place(one) for one in value]
    return _place(value) if name in (_MODEL, _TEXT) else _with_places(plain(value), spelling)


def _with_places(value: Any, spelling: dict[str, str]) -> Any:
    """The same with paths that stay right in other folders, also those of saved swaps ("file:PATH")."""
    if isinstance(value, Mapping):
        return {key: _with_places(one, spelling) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_places(one, spelling) for one in value]
    if isinstance(value, os.PathLike):
        return _place(value)
    if isinstance(value, str) and value.startswith(FILE_PREFIX):
        spec = f"{FILE_PREFIX}{_place(value.removeprefix(FILE_PREFIX))}"
        spelling[spec] = value
        return spec
    return value


def _place(given: Any) -> Any:
    """A path that stays right in other folders; a name, or a text itself, as it is."""
    if isinstance(given, str | os.PathLike):
        try:
            path = Path(given).expanduser()
            return str(path.resolve()) if path.exists() else os.fspath(given)
        except (OSError, ValueError, RuntimeError):  # a text that is too long for a path
            return os.fspath(given)
    return given
