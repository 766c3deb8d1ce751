"""Names that are imported on first use, and the extras of the package that some of them need.

Help and completion do not wait for torch, normalizers do not wait for tables and models, and a missing extra is
reported in one line before any work.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ._errors import AbbeError

# The extras of pyproject.toml, by import names; a test compares.
EXTRAS = {
    "models": ("filelock", "gguf", "polars", "safetensors", "scipy", "tokenizers", "transformers"),
    "report": ("altair", "jinja2", "vl_convert"),
    "eval": ("accelerate", "lm_eval"),
}
ALL = "all"
_TOGETHER = {ALL: ("models", "report"), "eval": ("models", "eval"), "": ()}
Getter = Callable[[str], Any]
Lister = Callable[[], list[str]]
Declared = Callable[[], Mapping[str, tuple[str, str]]]  # module and extra by name
_STUB = re.compile(r"^# needs (?P<extra>\w+)$|^from (?P<module>\S+) import (?P<names>\([^)]*\)|.*)$", re.MULTILINE)


class MissingExtraError(AbbeError):
    """Part of abbe needs packages of an extra that is not installed."""


def has(extra: str) -> bool:
    """Whether all packages of an extra are installed, without importing them."""
    return all(_installed(package) for part in _TOGETHER.get(extra, (extra,)) for package in EXTRAS[part])


def need(what: str, extra: str) -> None:
    if not has(extra):
        raise MissingExtraError(f'{what} needs abbe[{extra}]: pip install "abbe[{extra}]"')


def _installed(package: str) -> bool:
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except ImportError:  # a finder refuses it
        return False


def later(
    package: str, file: str, modules: Sequence[str] = (), declared: Declared = dict
) -> tuple[Getter, Lister, list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose names are imported on first use.

    Args:
        package: its `__name__`.
        file: its `__init__.py`; the stub beside it lists the names.
        modules: of the package that are imported on first use, too.
        declared: more names, with their modules and extras; asked only for names that the stub lacks.
    """
    listed = read_stub(Path(file).with_suffix(".pyi"))

    def get(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        place = listed.get(name) or declared().get(name)
        if place is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, extra = place
        need(f"{package}.{name}", extra)
        value = getattr(importlib.import_module(module, package), name)
        setattr(sys.modules[package], name, value)  # so that this is called only once per name
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *listed, *declared(), *modules})

    return get, names, list(listed)


def read_stub(stub: Path) -> dict[str, tuple[str, str]]:
    """Module and extra by name."""
    names, extra = {}, ""
    for match in _STUB.finditer(stub.read_text("utf-8")):
        extra = match["extra"] or extra
        for name in re.findall(r"\w+ as (\w+)", match["names"] or ""):
            names[name] = match["module"], extra
    return names
