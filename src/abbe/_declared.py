"""The studies of abbe, read from their sources: commands, help, lazy names and `abbe.open` learn of a study from here.

A study is a function with the decorator `@study(ItsResult, command="...", extra="...")` (`runs.study`). Importing it
would load torch, for which help and completion must not wait; so its declaration is found by the text of its module,
and its signature and docstring are parsed without running it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent
_ROOMS = ("studies", "lab")
_DECORATED = re.compile(r"^@study\((?P<result>\w+)(?P<options>[^)]*)\)\ndef (?P<function>\w+)\(", re.MULTILINE)
_OPTION = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Declared:
    """A study.

    Attributes:
        function: its name, as in `abbe.capacity`.
        result: name of the class of its result.
        module: where both are.
        command: as it is typed, such as "train length".
        extra: of the package, which it needs.
        named_by: the option that is part of the name of its default folder.
        shared: whether shards and actors can share its work.
    """

    function: str
    result: str
    module: str
    command: str
    extra: str
    named_by: str = ""
    shared: bool = True

    def load(self, name: str) -> Any:
        """The function or the class of the result."""
        return getattr(importlib.import_module(self.module), name)


@dataclass(frozen=True)
class Option:
    """A parameter of a study: its annotation and default as they stand in the source, and its line of `Args:`."""

    name: str
    annotation: str
    default: Any
    meaning: str


@dataclass(frozen=True)
class Described:
    """What help says about a study."""

    summary: str
    options: tuple[Option, ...]
    examples: tuple[str, ...] = ()


registered: dict[str, Declared] = {}  # studies of other packages, by function; `runs.study` adds them


@lru_cache(maxsize=1)
def _built_in() -> dict[str, Declared]:
    found = {}
    for room in _ROOMS:
        for path in sorted((_ROOT / room).rglob("*.py")):
            for match in _DECORATED.finditer(path.read_text("utf-8")):
                function, options = match["function"], dict(_OPTION.findall(match["options"]))
                module = ".".join(["abbe", *path.relative_to(_ROOT).with_suffix("").parts])
                options = {"command": function, "extra": "models"} | options
                shared = options.pop("shared", "yes") == "yes"
                options.pop("page", None)
                module = module.removesuffix(".__init__")
                found[function] = Declared(function, match["result"], module, **options, shared=shared)
    return found


def studies() -> dict[str, Declared]:
    """All studies by the name of their function."""
    return _built_in() | registered


def described(study: Declared) -> Described:
    """Signature and docstring of a study, without importing its module."""
    tree = ast.parse(_source(study))
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    function = next(x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef) and x.name == study.function)
    doc = ast.get_docstring(function) or ""
    meanings = _section(doc, "Args")
    arguments = function.args
    pairs = [
        *zip(arguments.args[::-1], arguments.defaults[::-1], strict=False),  # defaults belong to the last ones
        *((x, default) for x, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default),
    ]
    defaults = {argument.arg: _value(default, constants) for argument, default in pairs}
    options = tuple(
        Option(
            x.arg, ast.unparse(x.annotation) if x.annotation else "", defaults.get(x.arg, ...), meanings.get(x.arg, "")
        )
        for x in (*arguments.args, *arguments.kwonlyargs)
    )
    summary = " ".join(doc.partition("\n\n")[0].split())
    return Described(summary, options, tuple(_lines(doc, "Commands")))


def _source(study: Declared) -> str:
    if study.function in registered:
        return textwrap.dedent(inspect.getsource(importlib.import_module(study.module)))
    path = _ROOT.joinpath(*study.module.split(".")[1:])
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")


def _value(node: ast.expr, constants: dict[str, ast.expr]) -> Any:
    """A default: a literal, or the name of a constant of the same module."""
    if isinstance(node, ast.Name) and node.id in constants:
        node = constants[node.id]
    return ast.literal_eval(node)


def _lines(doc: str, section: str) -> list[str]:
    """The lines of a section of a docstring, without their indentation."""
    match = re.search(rf"^{section}:\n((?:[ ]{{4}}.*\n?|\n)+)", doc, re.MULTILINE)
    return [] if match is None else [line for line in textwrap.dedent(match[1]).splitlines() if line.strip()]


def _section(doc: str, section: str) -> dict[str, str]:
    """Meanings by name; several names may share one: "low, high: ...", and a meaning may go on in deeper lines."""
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in _lines(doc, section):
        if line.startswith(" "):
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
        else:
            listed, _, meaning = line.partition(": ")
            names = listed.split(", ")
            meanings |= dict.fromkeys(names, meaning)
    return meanings
