"""Docstrings as the site needs them: doctests are fenced as code, and "Example:" opens a section."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_TITLE = re.compile(r"^( *)Example:$", re.MULTILINE)
_DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1(?! *$).+)*", re.MULTILINE)  # up to a blank line, or one that stands out


class Doctests(Extension):
    """Extension of mkdocstrings that changes the docstring of every object before it is read."""

    def on_object(self, *, obj: Object, **_more: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """Docstring with its doctests between fences, where nothing is taken for markup."""
    titled = _TITLE.sub(r"\1Examples:", docstring)
    return _DOCTEST.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", titled)
