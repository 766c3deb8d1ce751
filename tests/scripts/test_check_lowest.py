"""`make test-lowest`: which versions are the oldest, and which of them are pinned."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from load_scripts import script

check_lowest: Any = script("check_lowest")
ROOT = Path(__file__).resolve().parents[2]


def test_every_dependency_of_a_user_has_a_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["models"], *extras["report"]]
    bounds = check_lowest.lowest()
    assert len(bounds) == len(lines)
    assert all(any(line.startswith(f"{name}>={version}") for line in lines) for name, version in bounds.items())


def test_tools_have_the_versions_of_the_other_tests() -> None:
    pins = check_lowest.pinned(check_lowest.TOOLS)
    assert sorted(pin.partition("==")[0] for pin in pins) == sorted(check_lowest.TOOLS)
    assert all((ROOT / name).is_file() for name in check_lowest.NOT_HERE)
