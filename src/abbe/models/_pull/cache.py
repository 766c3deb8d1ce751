"""Where pulled models lie in the user's cache, and which names can be pulled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..._errors import AbbeError

PULLABLE = ("smollm2", "minilm")
ABOUT = "ABOUT.json"


def cache_folder() -> Path:
    """$ABBE_CACHE, else $XDG_CACHE_HOME/abbe, else ~/.cache/abbe."""
    if own := os.environ.get("ABBE_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "abbe"
    return Path.home() / ".cache" / "abbe"


def model_folder(name: str) -> Path:
    """The folder of a pulled model, whether it is there or not."""
    return cache_folder() / "models" / name


def is_pulled(name: str) -> bool:
    """A folder appears only when it is complete, so its facts are enough of a proof."""
    return (model_folder(name) / ABOUT).is_file()


def facts(name: str) -> dict[str, Any]:
    """What is known about a pulled model: what it is, where it came from, its hash and its licence."""
    path = model_folder(name) / ABOUT
    if not path.is_file():
        raise AbbeError(f"model {name!r} is not in {path.parent}: run `abbe pull {name}` first")
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return known
