"""Versions: Python, and the packages in abbe's metadata, one line per extra."""

from __future__ import annotations

import platform
import re
import sys
from collections import defaultdict
from importlib import metadata

from .check import Check

PYTHON = (3, 11)
_EXTRAS = ("models", "report")
# Parts of a line of the metadata, such as numba<0.69,>=0.60; extra == 'models'
_PARTS = (r"\s*([\w.-]+)", r">=\s*([\d.]+)", r"<\s*([\d.]+)", r"extra\s*==\s*['\"]([\w-]+)")


def python_check() -> Check:
    version = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < PYTHON:
        return Check("Python", "broken", version, "install Python 3.11 or newer")
    return Check("Python", "ok", version)


def package_checks() -> list[Check]:
    """The required packages, then those of each extra."""
    try:
        lines = metadata.requires("abbe") or []
    except metadata.PackageNotFoundError:
        advice = "pip install --editable . in its folder, so that the packages it needs are known"
        return [Check("packages", "warning", "abbe is not installed as a package", advice)]
    checks = defaultdict(list)
    for line in lines:
        name, least, untested, extra = (match[1] if (match := re.search(one, line)) else "" for one in _PARTS)
        checks[extra].append(_package(name, least, untested))
    return [_together(extra, checks[extra]) for extra in ("", *_EXTRAS) if checks[extra]]


def _package(name: str, least: str, untested: str) -> Check:
    bounds = [sign + version for sign, version in ((">=", least), ("<", untested)) if version]
    install = f"pip install '{name}{','.join(bounds)}'"
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, "missing", f"{name} is not installed", install)
    if least and _numbers(installed) < _numbers(least):
        return Check(name, "broken", f"{name} {installed} is too old", install)
    if untested and _numbers(installed) >= _numbers(untested):
        return Check(name, "warning", f"{name} {installed} is newer than any that was tested", install)
    return Check(name, "ok", f"{name} {installed}")


def _together(extra: str, packages: list[Check]) -> Check:
    """One line: the versions, or else everything wrong with them. Only required packages can be broken."""
    wrong = [one for one in packages if one.state != "ok"]
    name, detail = f"abbe[{extra}]" if extra else "packages", ", ".join(one.detail for one in wrong or packages)
    if not wrong:
        return Check(name, "ok", detail)
    if extra:
        absent = any(one.state == "missing" for one in wrong)
        return Check(name, "missing" if absent else "warning", detail, f"pip install --upgrade 'abbe[{extra}]'")
    works = all(one.state == "warning" for one in wrong)
    return Check(name, "warning" if works else "broken", detail, "; ".join(one.advice for one in wrong))


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version; a candidate such as 2.6rc1 counts as 2.6."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version, maxsplit=1)[0]))
