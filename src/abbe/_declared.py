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
from collections.abc import Callable, Iterable
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
    """What help says about a study or another command: the text before the sections of its docstring, and those."""

    text: str
    options: tuple[Option, ...]
    examples: tuple[str, ...] = ()


# No study, but its result is opened like theirs.
MONITOR = Declared("Monitor", "Training", "abbe.training", "watch", "models")
registered: dict[str, Declared] = {}  # studies of other packages, by function; `runs.study` adds them


@lru_cache(maxsize=1)
def _built_in() -> dict[str, Declared]:
    found = {}
    for room in _ROOMS:
        for path in sorted((_ROOT / room).rglob("*.py")):
            for match in _DECORATED.finditer(path.read_text("utf-8")):
                function = match["function"]
                options = {"command": function, "extra": "models"} | dict(_OPTION.findall(match["options"]))
                shared = options.pop("shared", "yes") == "yes"
                options.pop("page", None)  # of the decorator alone
                module = ".".join(["abbe", *path.relative_to(_ROOT).with_suffix("").parts]).removesuffix(".__init__")
                found[function] = Declared(function, match["result"], module, **options, shared=shared)
    return found


def studies() -> dict[str, Declared]:
    """All studies by the name of their function."""
    return _built_in() | registered


def names() -> dict[str, tuple[str, str]]:
    """Module and extra of every study and result, by name."""
    declared = studies().values()
    results = {study.result: (study.module, "models") for study in declared}
    return results | {study.function: (study.module, study.extra) for study in declared}


def described(study: Declared) -> Described:
    """Signature and docstring of a study, without importing its module."""
    # What stands below the function is not parsed: that would take most of the time of `abbe --help`.
    above = re.compile(rf".*?^def {study.function}\(.*?(?=^[@\w#]|\Z)", re.DOTALL | re.MULTILINE).match(_source(study))
    tree = ast.parse(above[0] if above else "")
    assigned = (node for node in tree.body if isinstance(node, ast.Assign))
    constants = {target.id: node.value for node in assigned for target in node.targets if isinstance(target, ast.Name)}
    function = next(x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef) and x.name == study.function)
    given = function.args
    without = [None] * (len(given.args) - len(given.defaults))  # defaults belong to the last ones
    parameters = [
        (x.arg, ast.unparse(x.annotation) if x.annotation else "", _value(default, constants))
        for x, default in zip(
            [*given.args, *given.kwonlyargs], [*without, *given.defaults, *given.kw_defaults], strict=True
        )
    ]
    return _described(ast.get_docstring(function) or "", parameters)


def described_function(function: Callable[..., Any]) -> Described:
    """The same of a function of the command line itself; `**options` are described elsewhere."""
    parameters = [
        (x.name, str(x.annotation), ... if x.default is x.empty else x.default)
        for x in inspect.signature(function).parameters.values()
        if x.kind is not x.VAR_KEYWORD
    ]
    return _described(inspect.getdoc(function) or "", parameters)


def _described(doc: str, parameters: Iterable[tuple[str, str, Any]]) -> Described:
    meanings = _section(doc, "Args")
    options = tuple(Option(*parameter, meanings.get(parameter[0], "")) for parameter in parameters)
    return Described(
        re.split(r"\n*^\w+:$", doc, maxsplit=1, flags=re.MULTILINE)[0], options, tuple(_lines(doc, "Commands"))
    )


def _source(study: Declared) -> str:
    if study.function in registered:
        return textwrap.dedent(inspect.getsource(importlib.import_module(study.module)))
    path = _ROOT.joinpath(*study.module.split(".")[1:])
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")


def _value(node: ast.expr | None, constants: dict[str, ast.expr]) -> Any:
    """A default: a literal, or the name of a constant of the same module; `...` without one."""
    named = constants.get(node.id, node) if isinstance(node, ast.Name) else node
    return ... if named is None else ast.literal_eval(named)


def _lines(doc: str, section: str) -> list[str]:
    """The lines of a section of a docstring; deeper ones continue the line before."""
    match = re.search(rf"^{section}:\n((?:[ ]{{4}}.*\n?|\n)+)", doc, re.MULTILINE)
    text = "" if match is None else textwrap.dedent(match[1])
    return [line for line in re.sub(r"\n +", " ", text).splitlines() if line]


def _section(doc: str, section: str) -> dict[str, str]:
    """Meanings by name; several names may share one: "low, high: ..."."""
    meanings: dict[str, str] = {}
    for line in _lines(doc, section):
        names, _, meaning = line.partition(": ")
        meanings |= dict.fromkeys(names.split(", "), meaning)
    return meanings
