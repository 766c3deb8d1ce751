"""A page per public package, with every name of its `__all__`; mkdocstrings renders the docstrings."""

from __future__ import annotations

import importlib
from types import ModuleType

from .markdown import page

PACKAGES = ("normalizers", "measures", "bounds", "models", "studies", "training", "results", "views", "entmax")
_GROUPS = {
    "studies": "Studies: what a command does",
    "models": "Models and text",
    "normalizers": "Normalizers",
    "training": "Training",
    "results": "Results",
}


def python_pages() -> dict[str, str]:
    top = importlib.import_module("abbe")
    pages = {"python/abbe.md": page("abbe", "`import abbe` gives these names.", *_top(top))}
    for name in PACKAGES:
        package = importlib.import_module(f"abbe.{name}")
        pages[f"python/{name}.md"] = page(f"abbe.{name}", *_package(package, set(top.__all__)))
    return pages


def public(module: ModuleType) -> list[str]:
    """Names of a package; a module without a list of them gives what it defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed, key=str.lower)
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return sorted((name for name in own if not name.startswith("_")), key=str.lower)


def _top(top: ModuleType) -> list[str]:
    parts, left = [], public(top)
    for package, title in _GROUPS.items():
        inside = public(importlib.import_module(f"abbe.{package}"))
        here = [name for name in left if name in inside]
        left = [name for name in left if name not in here]
        parts += [f"## {title}", *(_entry(f"abbe.{name}") for name in here)]
    return ["## Attention and errors", *(_entry(f"abbe.{name}") for name in left), *parts]


def _package(package: ModuleType, at_top: set[str]) -> list[str]:
    """Names that are also those of `abbe` itself are described there."""
    names, name = public(package), package.__name__
    again = [
        one for one in names if one in at_top and getattr(importlib.import_module("abbe"), one) is getattr(package, one)
    ]
    described = ", ".join(f"[`{one}`][abbe.{one}]" for one in again)
    links = f"On the page of [abbe](abbe.md): {described}." if again else ""
    entries = [_entry(f"{name}.{one}") for one in names if one not in again]
    return [_about(name), links, *(["## Names", *entries] if entries else [])]


def _about(name: str) -> str:
    """The docstring of the package alone."""
    return f"::: {name}\n    options: {{members: false, show_root_heading: false, show_root_toc_entry: false}}"


def _entry(path: str) -> str:
    return f"::: {path}"
