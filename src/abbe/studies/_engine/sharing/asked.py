"""The arguments of a shared study as its folder keeps them, so that `merge` can call it again."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import torch

from ...._asked import plain
from ....models import Text
from ..given import as_text
from .crew import current
from .engine import current_engine

_P = ParamSpec("_P")
_R = TypeVar("_R")
_HERE = ("folder", "progress")  # are those of the call that merges
_MODEL, _TEXT, _ARGUMENTS, _ABSENT = "model", "text", "arguments", "absent"


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


def written_down(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON, and the names of those that have no such form."""
    arguments, absent = {}, []
    for name, value in given.items():
        if name in _HERE:
            continue
        try:
            arguments[name] = json.loads(json.dumps(_plain(name, value)))
        except (TypeError, ValueError):
            absent.append(name)
    return {_ARGUMENTS: arguments, _ABSENT: absent}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, (torch.device, torch.dtype)):
        return str(value).removeprefix("torch.")
    if isinstance(value, Text):
        return {"name": value.name, "content": value.content}
    if name in (_MODEL, _TEXT) and isinstance(value, (list, tuple)):
        return [_place(one) for one in value]
    return _place(value) if name in (_MODEL, _TEXT) else plain(value)


def _place(given: Any) -> Any:
    """A path that stays right in other folders; a name, or a text itself, as it is."""
    if isinstance(given, str | os.PathLike):
        try:
            path = Path(given).expanduser()
            return str(path.resolve()) if path.exists() else os.fspath(given)
        except (OSError, ValueError, RuntimeError):  # a text that is too long for a path
            return os.fspath(given)
    return given
