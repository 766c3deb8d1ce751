"""The environment of these tests is what constraints.txt says: a missing package fails here, and does not skip."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRA = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
PINS = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("line", EXTRA["ecosystem"])
def test_every_package_of_the_extra_is_installed_at_its_pin(line: str) -> None:
    name = line.partition(">=")[0]
    assert metadata.version(name) == PINS[name]
