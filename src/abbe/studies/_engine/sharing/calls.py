"""Calls of a study: plain, by an engine, or by workers, which store the arguments so that `merge` can call it again."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import torch

from ...._arguments import plain
from ....models import FILE_PREFIX, Text
from ....results import Result
from ..inputs import as_text
from .crew import current, is_shared, temporarily

_P = ParamSpec("_P")
_R = TypeVar("_R")
_HERE = ("folder", "progress")  # come from the call that merges
_MODEL, _TEXT, _ARGUMENTS, _ABSENT, _SPELLED = "model", "text", "arguments", "absent", "spelled"
_spelling: ContextVar[Mapping[str, str]] = ContextVar("spelling", default=MappingProxyType({}))


class Outcome(Protocol):
    """Of one of several studies."""

    error: str  # why there is no result, in one line; else empty


class Engine(Protocol):
    """Runs a study elsewhere, such as on a cluster, and returns its result."""

    def run(self, study: str, arguments: Mapping[str, Any]) -> Result: ...

    def run_all(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> Sequence[Outcome]:
        """Several studies, side by side."""


current_engine: ContextVar[Engine | None] = ContextVar("engine", default=None)


def shareable(study: Callable[_P, _R]) -> Callable[_P, _R]:
    """A study that workers can share: the first one stores its arguments."""
    signature = inspect.signature(study)

    @functools.wraps(study)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        engine = None if is_shared() else current_engine.get()
        if engine is None and not is_shared():
            return study(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        if _TEXT in bound.arguments:
            bound.arguments[_TEXT] = read_once(bound.arguments[_TEXT])
        if engine is not None:
            return cast(_R, engine.run(study.__name__, bound.arguments))
        current.get().called(study.__name__, call_as_json(bound.arguments))
        return study(*bound.args, **bound.kwargs)

    return called


def call_from_json(request: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments that `shareable` stored, and the names of those that cannot be stored, such as a network."""
    arguments = dict(request[_ARGUMENTS])
    if isinstance(arguments.get(_TEXT), dict):
        arguments[_TEXT] = Text(**arguments[_TEXT])
    return arguments, list(request[_ABSENT])


def read_once(text: Any) -> Any:
    """Standard input, which can be read only once, as its text; anything else unchanged."""
    from_input = text == "-" or (isinstance(text, (list, tuple)) and "-" in text)
    return as_text(text) if from_input else text


def spelled_as_called(request: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Within, files have the names that the workers were given, although they are found from any folder."""
    return temporarily(_spelling, request.get(_SPELLED, {}))


def spelled(spec: str) -> str:
    """The name of a file as the workers were given it: it is part of the identity of a run."""
    return _spelling.get().get(spec, spec)


def call_as_json(call: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON, and the names of those that have no such form."""
    arguments, absent = {}, []
    spelling: dict[str, str] = {}
    for name, value in call.items():
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
    """The same with absolute paths, including those of saved swaps ("file:PATH")."""
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


def _place(value: Any) -> Any:
    """An existing path as an absolute one; a name, or a text itself, unchanged."""
    if not isinstance(value, str | os.PathLike):
        return value
    with suppress(OSError, ValueError, RuntimeError):  # a text that is too long for a path
        path = Path(value).expanduser()
        if path.exists():
            return str(path.resolve())
    return os.fspath(value)
