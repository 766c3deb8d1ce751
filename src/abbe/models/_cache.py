"""The folders of pulled models in the user's cache, and the names that can be pulled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .._errors import AbbeError

PULLABLE = ("smollm2", "minilm")
ABOUT = "ABOUT.json"


def cache_folder() -> Path:
    """Where pulled models lie: $ABBE_CACHE, else $XDG_CACHE_HOME/abbe, else ~/.cache/abbe.

    Returns:
        The folder, whether it is there or not.

    Examples:
        >>> abbe.models.cache_folder().name
        '...'
    """
    if own := os.environ.get("ABBE_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "abbe"
    return Path.home() / ".cache" / "abbe"


def pulled_folder(name: str) -> Path:
    """The folder of a pulled model, whether it is there or not.

    Args:
        name: "smollm2" or "minilm".

    Returns:
        The folder.

    Examples:
        >>> abbe.models.pulled_folder("smollm2").name
        'smollm2'
    """
    return cache_folder() / "models" / name


def is_pulled(name: str) -> bool:
    """Whether a model is in the cache; a folder appears only when it is complete.

    Args:
        name: "smollm2" or "minilm".

    Returns:
        True if `load(name)` will find it.

    Examples:
        >>> abbe.models.is_pulled("no such model")
        False
    """
    return (pulled_folder(name) / ABOUT).is_file()


def pulled_facts(name: str) -> dict[str, Any]:
    """Facts about a pulled model: what it is, its source, hash and licence.

    Args:
        name: "smollm2" or "minilm".

    Returns:
        Facts by name.

    Raises:
        AbbeError: it is not in the cache.

    Examples:
        >>> abbe.models.pulled_facts("no such model")
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: model 'no such model' is not in ...: run `abbe pull no such model` first
    """
    path = pulled_folder(name) / ABOUT
    if not path.is_file():
        raise AbbeError(f"model {name!r} is not in {path.parent}: run `abbe pull {name}` first")
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts
