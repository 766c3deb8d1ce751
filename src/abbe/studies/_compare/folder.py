"""What a comparison has measured so far, part by part: in a folder, from which a stopped one goes on, or in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from .._engine.parts import Parts

_PARTS = "parts"


class Kept:
    """Parts by name, each a JSON object; one whose file is not there or damaged is made anew."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.path = parts, parts.folder

    def part(self, name: str, make: Callable[[], Mapping[str, Any]], on_kept: Callable[[], object]) -> dict[str, Any]:
        """What was kept under that name, or what `make` gives."""
        found = self.parts.json(f"{_PARTS}/{name}")
        if found is not None:
            on_kept()
            return found
        made: dict[str, Any] = _plain(make())
        self.parts.keep_json(f"{_PARTS}/{name}", made)
        return made


def _plain(found: Any) -> Any:
    """As JSON gives it back: text for keys, null for what is not finite."""
    if isinstance(found, Mapping):
        return {str(key): _plain(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_plain(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found
