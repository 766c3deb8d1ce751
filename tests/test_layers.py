"""What import-linter does not check: tests know the inside of abbe through one file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import inside

import abbe

ROOT = Path(abbe.__file__).parent


def imported(file: Path) -> Iterator[tuple[str, ...]]:
    """The parts of every module that a file imports from abbe, without "abbe"."""
    package = file.relative_to(ROOT).parent.parts if ROOT in file.parents else ()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            start = package[: len(package) - node.level + 1]
            module = (*start, *(node.module or "").split(".")) if node.module else start
            yield from ((*module, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "abbe":
            yield from ((*(node.module or "").split(".")[1:], alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")[1:]) for alias in node.names if alias.name.startswith("abbe."))


def is_module(parts: tuple[str, ...]) -> bool:
    path = ROOT.joinpath(*parts)
    return path.with_suffix(".py").exists() or path.is_dir()


# -- Tests ------------------------------------------------------------------------------------------------------------

TESTS = Path(__file__).parent


def test_tests_reach_inside_through_one_door() -> None:
    files = {file for file in TESTS.rglob("*.py") if file.name != "inside.py"}
    assert len(files) > 150
    reaches = {
        str(file.relative_to(TESTS)): ".".join(parts)
        for file in files
        for parts in imported(file)
        if any(part.startswith("_") and is_module(parts[: i + 1]) for i, part in enumerate(parts))
    }
    assert reaches == {}, "import it from where it is public, or through tests/inside.py"


def test_the_door_is_no_wider_than_needed() -> None:
    used = {
        alias.name
        for file in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "inside"
        for alias in node.names
    }
    assert used == {*inside.MODULES, *inside.PLACES}
    assert all(getattr(inside, name) is not None for name in used)
