"""Versions: Python, abbe, and every package that abbe's own metadata names."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata

import torch

from .check import Check

PYTHON = (3, 11)
_NEEDED, _OPTIONAL = "Versions", "Optional parts"
_REQUIREMENT = re.compile(r"\s*([\w.-]+)[^;>]*(?:>=\s*([\d.]+))?[^;]*(?:;.*extra\s*==\s*['\"]([\w-]+)['\"])?")
_PURPOSE = {
    "beartype": "checks of types in tests",
    "entmax": "an oracle of tests",
    "hypothesis": "property tests",
    "import-linter": "the check of layers",
    "jaxtyping": "checks of shapes in tests",
    "mpmath": "exact arithmetic in tests",
    "mypy": "the check of types",
    "playwright": "tests of the pages",
    "pytest": "tests",
    "pytest-xdist": "tests on several cores",
    "ruff": "lint and format",
    "scipy": "an oracle of tests",
}


def python_check() -> Check:
    found = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < PYTHON:
        return Check("Python", "broken", found, "abbe needs Python 3.11 or newer", _NEEDED)
    return Check("Python", "ok", found, group=_NEEDED)


def abbe_check() -> Check:
    """An installation of another version than the code that runs has old metadata."""
    from ... import __version__

    installed = _version("abbe")
    if installed is None:
        advice = "its requirements cannot be checked: install it, for example with pip install --editable ."
        return Check("abbe", "warning", f"{__version__}, not installed as a package", advice, _NEEDED)
    if installed != __version__:
        advice = "install it again, for example with pip install --editable ."
        return Check("abbe", "warning", f"{__version__}, installed as {installed}", advice, _NEEDED)
    return Check("abbe", "ok", installed, group=_NEEDED)


def package_checks() -> list[Check]:
    """What abbe cannot do without, then its extras."""
    every = [_package(*requirement) for requirement in _requirements()]
    return sorted(every, key=lambda check: not check.needed)


def _requirements() -> Iterator[tuple[str, str, str]]:
    """Name, least version and extra of each."""
    try:
        lines = metadata.requires("abbe") or []
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        if match := _REQUIREMENT.match(line):
            yield match[1], match[2] or "", match[3] or ""


def _package(name: str, least: str, extra: str) -> Check:
    group, needed = (_OPTIONAL, False) if extra else (_NEEDED, True)
    wanted = f"{name}>={least}" if least else name
    advice = f"pip install '{wanted}'" + (f", or all of this extra: pip install 'abbe[{extra}]'" if extra else "")
    purpose = f", for {_PURPOSE[name]}" if name in _PURPOSE else ""
    installed = _version(name)
    if installed is None:
        return Check(name, "missing", f"not installed{purpose}", advice, group, needed)
    if least and _numbers(installed) < _numbers(least):
        return Check(name, "broken", f"{installed}, but {least} or newer is needed", advice, group, needed)
    return Check(name, "ok", installed + (f" ({_build()})" if name == "torch" else purpose), "", group, needed)


def _build() -> str:
    if torch.version.cuda:
        return f"build for CUDA {torch.version.cuda}"
    if getattr(torch.version, "hip", None):
        return f"build for ROCm {torch.version.hip}"
    return "build for the CPU"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version; a candidate such as 2.6rc1 counts as 2.6."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version, maxsplit=1)[0]))
