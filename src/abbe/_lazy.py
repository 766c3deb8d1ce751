"""Names that are imported on first use, and the extras of the package that some of them need.

Help and completion do not wait for torch, normalizers do not wait for tables and models, and a missing extra is
reported in one line before any work.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._errors import AbbeError

# The extras of pyproject.toml, by import names; a test compares.
EXTRAS = {
    "models": ("filelock", "gguf", "polars", "safetensors", "scipy", "tokenizers", "transformers"),
    "report": ("altair", "jinja2", "vl_convert"),
}
ALL = "all"
Names = Mapping[str, Mapping[str, Sequence[str]]]  # by extra ("" for none), then by module


class MissingExtraError(AbbeError):
    """Part of abbe needs packages of an extra that is not installed."""


def has(extra: str) -> bool:
    """Whether all packages of an extra are installed, without importing them."""
    parts = EXTRAS if extra == ALL else [extra] if extra else []
    return all(_installed(package) for part in parts for package in EXTRAS[part])


def need(what: str, extra: str) -> None:
    if not has(extra):
        raise MissingExtraError(f'{what} needs abbe[{extra}]: pip install "abbe[{extra}]"')


def _installed(package: str) -> bool:
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except ImportError:  # a finder refuses it
        return False


def later(
    package: str, names: Names, modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names, and some of whose modules, are imported on first use."""
    places = {
        name: (extra, module)
        for extra, by_module in names.items()
        for module, several in by_module.items()
        for name in several
    }

    def get(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        extra, module = places[name]
        need(f"{package}.{name}", extra)
        value = getattr(importlib.import_module(module, package), name)
        setattr(sys.modules[package], name, value)  # so that this is called only once per name
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places, *modules})

    return get, listed
