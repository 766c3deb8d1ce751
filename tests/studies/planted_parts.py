"""Parts of a study with planted numbers: it reads them as if an earlier call had measured them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from abbe.runs.parts import Parts

Numbers = Callable[[str], Mapping[str, Any] | None]


@contextmanager
def planted(numbers: Numbers, tensors: dict[str, Any] | None = None) -> Iterator[None]:
    """`numbers` gives the content of a part by its name, or None for those that are measured.

    `tensors` holds parts of tensors by name; those that it lacks are measured, and kept in it for the next call.
    """
    read, get = Parts.json, Parts.get_or_make

    def known(parts: Parts, name: str) -> dict[str, Any] | None:
        content = numbers(name)
        return read(parts, name) if content is None else json.loads(json.dumps(content))

    def get_or_make(parts: Parts, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        return known(parts, name) if numbers(name) is not None else get(parts, name, make)  # type: ignore[return-value]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parts, "json", known)
        patch.setattr(Parts, "get_or_make", get_or_make)
        if tensors is not None:
            patch.setattr(Parts, "tensors", lambda _, name: tensors.get(name))
            patch.setattr(Parts, "keep_tensors", lambda _, name, *content: tensors.update({name: content}))
        yield
