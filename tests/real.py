"""Real models and texts for tests: where they are, or why a test that needs them skips."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from abbe.models import is_pulled

SHARED = Path(os.environ.get("ABBE_SHARED") or Path(__file__).resolve().parents[2] / "shared")


def shared(*parts: str) -> Path:
    """A file or folder beside the repository; the test skips when it is not there."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no {'/'.join(parts)} in ../shared (or $ABBE_SHARED)")
    return path


def shared_model(name: str) -> Path:
    return shared("models", name)


def shared_text(name: str = "war_and_peace.txt") -> Path:
    return shared("texts", name)


def pulled(name: str) -> str:
    """The name of a pulled model, to load it by; the test skips when it is not in the cache."""
    if not is_pulled(name):
        pytest.skip(f"{name} is not in the cache: `abbe pull {name}` needs the network")
    return name
